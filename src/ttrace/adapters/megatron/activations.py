"""Where the inputs and outputs of Megatron's modules belong: slot, layout and batch dim.

Enters: a module, a slot, the tensor's shape. Leaves: a BoundarySpec, or None for what a pipeline
stage hands on in place of the model's output. Gradients lie as their values do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.transformer.moe.router import Router
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from ttrace.adapters.base import NO_BATCH, BoundarySpec, SentTokens
from ttrace.adapters.megatron.experts import Dispatched, Dispatches, TokenSource
from ttrace.adapters.megatron.layouts import (
    Ranks,
    Role,
    column_layout,
    role_of,
    sequence_layout,
    shard_of,
)
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout

_BATCH = 1  # of [sequence, batch, hidden]
_IS_OUTPUT = {
    Kind.INPUT: False,
    Kind.GRAD_INPUT: False,
    Kind.OUTPUT: True,
    Kind.GRAD_OUTPUT: True,
}


class Activations:
    """Knows the modules of one rank; `length` is its part of the sequence, once seen."""

    def __init__(
        self,
        *,
        ranks: Ranks,
        roots: Mapping[int, nn.Module],
        paths: Mapping[int, str],
        sections: Mapping[int, int],
        parameters: Mapping[int, Layout | None],
        dispatches: Dispatches,
        experts: Mapping[int, tuple[Any, int | None]],
    ) -> None:
        self._dispatches = dispatches
        self._experts = experts
        self._ranks = ranks
        self._roots = roots
        self._paths = paths
        self._sections = sections
        self._parameters = parameters
        self._length = 0

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        if id(tensor) in self._parameters:
            return BoundarySpec(slot=slot, layout=self._parameters[id(tensor)], batch_dim=NO_BATCH)
        is_output = _IS_OUTPUT[kind]
        if kind is Kind.GRAD_INPUT and isinstance(module, FusedScaleMaskSoftmax):
            return None  # it masks its input in place, after which that has no gradient
        if not is_output:
            self._learn_length(module, slot, tensor)
        if id(module) in self._experts:
            return self._sent(module, kind, slot, tensor)
        form = self._form(module, slot, tensor, is_output=is_output)
        return form(slot, tensor)

    def hands_on(self, module: nn.Module) -> bool:
        """Hidden states that go to the next pipeline stage; each layer records them already."""
        is_whole = id(module) in self._roots or isinstance(module, TransformerBlock)
        return is_whole and not getattr(module, "post_process", True)

    def _learn_length(self, module: nn.Module, slot: str, tensor: torch.Tensor) -> None:
        if isinstance(module, TransformerLayer) and slot in ("0", "hidden_states"):
            scattered = self._ranks.tp[1] if self._ranks.sequence_parallel else 1
            self._length = tensor.shape[0] * scattered
        elif id(module) in self._roots and tensor.dim() == 2:
            self._length = tensor.shape[1]

    def _form(
        self, module: nn.Module, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> Callable[[str, torch.Tensor], BoundarySpec]:
        if "rotary" in slot or "otary" in type(module).__name__:
            return self._table
        if tensor.dim() == 4 and tensor.dtype == torch.bool:
            return self._mask
        if tensor.dim() < 2:
            return _unknown
        if id(module) in self._roots:
            return self._samples
        role = role_of(module)
        found = self._OF_ROLE.get(role) if role is not None else None
        for kind, form in self._FORMS:
            found = form if found is None and isinstance(module, kind) else found
        if found is not None:
            return lambda slot, tensor: found(self, module, slot, tensor, is_output=is_output)
        return lambda slot, tensor: self._other(module, slot, tensor)

    def _table(self, slot: str, tensor: torch.Tensor) -> BoundarySpec:
        layout = sequence_layout(tensor.shape, self._ranks, scattered=False)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=NO_BATCH)

    def _mask(self, slot: str, tensor: torch.Tensor) -> BoundarySpec:
        """[batch or 1, heads or 1, queries, keys]; the queries may be those of this rank only."""
        batch_dim = NO_BATCH if tensor.shape[0] == 1 else 0
        layout = Layout.full(tensor.shape)
        if tensor.shape[2] < tensor.shape[3]:
            layout = sequence_layout(tensor.shape, self._ranks, dim=2, scattered=False)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=batch_dim)

    def _samples(self, slot: str, tensor: torch.Tensor) -> BoundarySpec:
        """[batch, sequence, ...]; logits are cut over the vocabulary too."""
        layout = sequence_layout(tensor.shape, self._ranks, dim=1, scattered=False)
        if tensor.dim() == 3 and tensor.is_floating_point() and self._ranks.tp[1] > 1:
            return BoundarySpec(slot=slot, batch_dim=0)  # gathered or not: by its shape
        return BoundarySpec(slot=slot, layout=layout, batch_dim=0)

    def _hidden(self, slot: str, tensor: torch.Tensor, *, scattered: bool) -> BoundarySpec:
        layout = sequence_layout(tensor.shape, self._ranks, scattered=scattered)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=_BATCH)

    def _columns(
        self, module: nn.Module, slot: str, tensor: torch.Tensor, dim: int, sections: int = 1
    ) -> BoundarySpec:
        axis = self._ranks.tensor_axis(module)[1]
        layout = column_layout(tensor.shape, self._ranks, axis, dim, sections)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=_BATCH)

    def _column_linear(
        self, module: Any, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        if not is_output:
            return self._hidden(slot, tensor, scattered=bool(module.sequence_parallel))
        if getattr(module, "gather_output", False):
            return self._hidden(slot, tensor, scattered=False)
        return self._columns(
            module, slot, tensor, -1 % tensor.dim(), self._sections.get(id(module), 1)
        )

    def _row_linear(
        self, module: Any, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        if is_output:
            return self._hidden(slot, tensor, scattered=bool(module.sequence_parallel))
        if not getattr(module, "input_is_parallel", True):
            return self._hidden(slot, tensor, scattered=False)
        return self._columns(module, slot, tensor, -1 % tensor.dim())

    def _embedding(
        self, module: Any, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        if not is_output:
            return self._samples(slot, tensor)
        if isinstance(module, LanguageModelEmbedding):
            scattered = self._ranks.sequence_parallel and module.scatter_to_sequence_parallel
            return self._hidden(slot, tensor, scattered=scattered)
        if module.reduce_scatter_embeddings:
            return self._hidden(slot, tensor, scattered=True)
        batch, length, width = tensor.shape
        layout = sequence_layout((length, batch, width), self._ranks, scattered=False)
        return BoundarySpec(slot=slot, dims=(1, 0, 2), layout=layout, batch_dim=_BATCH)

    def _attention(
        self, module: nn.Module, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        return self._columns(module, slot, tensor, 2)

    def _router(
        self, module: nn.Module, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        if not is_output:
            return self._hidden(slot, tensor, scattered=self._ranks.sequence_parallel)
        scattered = self._ranks.tp[1] if self._ranks.sequence_parallel else 1
        rows = max(1, self._length // scattered)
        shape = (rows, tensor.shape[0] // rows, *tensor.shape[1:])
        layout = sequence_layout(shape, self._ranks, scattered=self._ranks.sequence_parallel)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=_BATCH)

    def _heads_in_turn(
        self, module: Any, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        """Hidden states of the decoder and of every head, one after the other."""
        scattered = self._ranks.sequence_parallel
        if not is_output:
            return self._other(module, slot, tensor)
        rows = max(1, self._length // (self._ranks.tp[1] if scattered else 1))
        shape = (tensor.shape[0] // rows, rows, *tensor.shape[1:])
        layout = sequence_layout(shape, self._ranks, dim=1, scattered=scattered)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=_BATCH + 1)

    def _sent(
        self, module: Any, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        """Rows that stand for tokens of several ranks: each to its place among all tokens."""
        layer, expert = self._experts[id(module)]
        dispatched = self._dispatches.latest(layer)
        if dispatched is None:
            return BoundarySpec(slot=slot)
        rows = dispatched.rows if expert is None else dispatched.of_expert(expert)
        if tensor.dim() == 0 or tensor.shape[0] != len(rows) or not tensor.is_floating_point():
            return None  # counts of tokens: the routing map says them
        parts = tuple(
            self._rows_from(source, dispatched, rows, module, kind, tensor)
            for source in dispatched.sources
        )
        return BoundarySpec(slot=slot, batch_dim=_BATCH + (expert is None), rows=parts)

    def _rows_from(
        self,
        source: TokenSource,
        dispatched: Dispatched,
        rows: torch.Tensor,
        module: Any,
        kind: Kind,
        tensor: torch.Tensor,
    ) -> SentTokens:
        _, expert = self._experts[id(module)]
        mine = (rows[:, 0] == source.rank).nonzero().flatten()
        places = rows[mine, 1]
        shape = (*dispatched.shape, *tensor.shape[1:])
        ranks = replace(self._ranks, tp=source.tp, cp=source.cp)
        if expert is None:
            owner = torch.repeat_interleave(
                torch.arange(len(dispatched.counts)), torch.tensor(dispatched.counts)
            )
            places = places + owner[mine.cpu()].to(places) * math.prod(dispatched.shape)
            shape = (len(dispatched.counts), *shape)
        at = int(expert is None)
        layout = sequence_layout(shape, ranks, dim=at, scattered=ranks.sequence_parallel)
        if expert is None:
            layout = shard_of(layout, 0, *self._ranks.ep)
        layout = self._inside_expert(layout, module, kind)
        return SentTokens(origin=source.rank, rows=mine, places=places, layout=layout)

    def _inside_expert(self, layout: Layout, module: Any, kind: Kind) -> Layout:
        """Experts' tensor parallelism: columns inside, and sums that the dispatcher makes later."""
        index, count = self._ranks.etp
        if count == 1:
            return layout
        last, is_output = len(layout.shape) - 1, _IS_OUTPUT[kind]
        role = role_of(module)
        if role is Role.COLUMN and is_output:
            return shard_of(layout, last, index, count, self._sections.get(id(module), 1))
        if role is Role.ROW and not is_output:
            return shard_of(layout, last, index, count)
        return layout.summed_over("tp") if kind in (Kind.OUTPUT, Kind.GRAD_INPUT) else layout

    def _other(self, module: nn.Module, slot: str, tensor: torch.Tensor) -> BoundarySpec:
        """Norms, dropout, whole layers, and classes of the user's own: by where they stand."""
        path = self._paths.get(id(module), "")
        if ".core_attention." in path and tensor.dim() == 4:
            return self._scores(slot, tensor)
        if tensor.dim() == 4:
            return self._columns(module, slot, tensor, 2)  # heads: norms of queries and keys
        scattered = self._ranks.sequence_parallel
        expected = self._length // (self._ranks.tp[1] if scattered else 1)
        if tensor.dim() == 3 and tensor.shape[0] == expected:
            return self._hidden(slot, tensor, scattered=scattered)
        return _unknown(slot, tensor)

    def _scores(self, slot: str, tensor: torch.Tensor) -> BoundarySpec:
        """[batch, heads, queries, keys]."""
        index, count = self._ranks.tp
        shape = (tensor.shape[0], tensor.shape[1] * count, *tensor.shape[2:])
        layout = sequence_layout(shape, self._ranks, dim=2, scattered=False)
        return BoundarySpec(slot=slot, layout=layout.shard(1, index, count), batch_dim=0)

    _OF_ROLE: Mapping[Role, Callable[..., BoundarySpec]] = MappingProxyType(
        {
            Role.COLUMN: _column_linear,
            Role.ROW: _row_linear,
            Role.VOCABULARY: _embedding,
            Role.ATTENTION: _attention,
        }
    )
    _FORMS: tuple[tuple[type, Callable[..., BoundarySpec]], ...] = (
        (LanguageModelEmbedding, _embedding),
        (Router, _router),
        (MultiTokenPredictionBlock, _heads_in_turn),
    )


def _unknown(slot: str, tensor: torch.Tensor) -> BoundarySpec:
    return BoundarySpec(slot=slot)
