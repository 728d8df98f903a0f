"""Where the inputs and outputs of Megatron's modules belong: slot, layout and batch dim.

Enters: a module, a slot, the tensor's shape. Leaves: a BoundarySpec, or None for what a pipeline
stage hands on in place of the model's output. Gradients lie as their values do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import torch
from megatron.core.fusions.fused_softmax import FusedScaleMaskSoftmax
from megatron.core.models.common.embeddings.language_model_embedding import LanguageModelEmbedding
from megatron.core.models.common.language_module.language_module import LanguageModule
from megatron.core.transformer.moe.router import Router
from megatron.core.transformer.multi_token_prediction import MultiTokenPredictionBlock
from megatron.core.transformer.transformer_block import TransformerBlock
from megatron.core.transformer.transformer_layer import TransformerLayer
from torch import nn

from ttrace.adapters.base import NO_BATCH, BoundarySpec, somewhere
from ttrace.adapters.megatron.experts import ExpertRows
from ttrace.adapters.megatron.layouts import (
    Ranks,
    Role,
    column_layout,
    part_of,
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
        parameters: Mapping[int, Layout | None],
        experts: ExpertRows,
        heads: Mapping[int, int],
    ) -> None:
        self._experts = experts
        self._ranks = ranks
        self._roots = roots
        self._paths = paths
        self._heads = heads
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
        if self._experts.has(module):
            return self._experts.boundary(module, kind, slot, tensor)
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

    def _language_model(
        self, module: nn.Module, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        """A part of a larger model; hidden states may be given to it."""
        if is_output or tensor.dim() == 2:
            return self._samples(slot, tensor)
        return self._other(module, slot, tensor)

    def _hidden(self, slot: str, tensor: torch.Tensor, *, scattered: bool) -> BoundarySpec:
        layout = sequence_layout(tensor.shape, self._ranks, scattered=scattered)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=_BATCH)

    def _columns(
        self, module: nn.Module, slot: str, tensor: torch.Tensor, dim: int
    ) -> BoundarySpec:
        axis = self._ranks.tensor_axis(module)[1]
        layout = column_layout(tensor.shape, self._ranks, axis, dim)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=_BATCH)

    def _weight_layout(self, module: nn.Module) -> Layout | None:
        """Rows of a weight are columns of what it makes."""
        return self._parameters.get(id(getattr(module, "weight", None)))

    def _column_linear(
        self, module: Any, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        if not is_output:
            return self._hidden(slot, tensor, scattered=bool(module.sequence_parallel))
        if getattr(module, "gather_output", False):
            return self._hidden(slot, tensor, scattered=False)
        last = -1 % tensor.dim()
        weight = self._weight_layout(module)
        if weight is None or weight.local_shape[0] != tensor.shape[last]:
            return self._columns(module, slot, tensor, last)
        whole = sequence_layout(tensor.shape, self._ranks, scattered=False)
        layout = part_of(whole, last, weight)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=_BATCH)

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

    def _convolution(
        self, module: Any, slot: str, tensor: torch.Tensor, *, is_output: bool
    ) -> BoundarySpec:
        """[batch, channels, time]: the channels that the weight has rows for."""
        weight = self._weight_layout(module)
        is_own = module.groups == module.in_channels == module.out_channels
        if tensor.dim() != 3 or weight is None or not (is_output or is_own):
            return BoundarySpec(slot=slot, batch_dim=0 if tensor.dim() == 3 else None)
        layout = part_of(Layout.full(tensor.shape), 1, weight)
        return BoundarySpec(slot=slot, layout=layout, batch_dim=0)

    def _heads_as_rows(self, module: nn.Module, slot: str, tensor: torch.Tensor) -> BoundarySpec:
        """[batch, sequence, heads, ...] as rows."""
        heads = self._heads[id(module)]
        batch = tensor.shape[0] // max(1, self._length * heads)
        local = Layout.full((batch, self._length, heads, *tensor.shape[1:]))
        return BoundarySpec(slot=slot, layout=shard_of(local, 2, *self._ranks.tp), batch_dim=0)

    def _other(self, module: nn.Module, slot: str, tensor: torch.Tensor) -> BoundarySpec:
        """Norms, dropout, whole layers, and classes of the user's own: by where they stand."""
        path = self._paths.get(id(module), "")
        if id(module) in self._heads and tensor.dim() == 2:
            return self._heads_as_rows(module, slot, tensor)
        if ".core_attention." in path and tensor.dim() == 4:
            return self._scores(slot, tensor)
        is_attention = path.endswith(".core_attention")  # of the user's own
        if is_attention and tensor.dim() == 3 and tensor.shape[0] == self._length:
            return self._columns(module, slot, tensor, 2)
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
        (LanguageModule, _language_model),
        (nn.Conv1d, _convolution),
    )


def _unknown(slot: str, tensor: torch.Tensor) -> BoundarySpec:
    return somewhere(slot)
