"""The parameters of a Megatron model: canonical names, layouts, and sums that are still to come.

Enters: the chunks of this rank and what is known of their modules. Leaves: every parameter once,
with its layout by class and attributes and, of what those leave open, by `sharded_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from megatron.core.ssm.gated_delta_net import GatedDeltaNet
from megatron.core.transformer.attention import SelfAttention
from torch import nn

from ttrace.adapters.base import Parameter
from ttrace.adapters.megatron.layouts import Ranks, parameter_layout
from ttrace.adapters.megatron.paths import (
    parameter_name,
    tied_users,
    walk,
    with_global_number,
)
from ttrace.adapters.megatron.sharding import disagreements, sharded_layouts, used_layout
from ttrace.adapters.megatron.topology import EMBEDDING_AXIS, embedding_end
from ttrace.core.layout import Layout

_HEAD_NORMS: tuple[tuple[type, tuple[str, ...]], ...] = (
    (SelfAttention, ("q_layernorm", "k_layernorm")),
    (GatedDeltaNet, ("out_norm",)),
)


class ParameterTable:
    """The parameters of this rank, chunk by chunk, and what is known of each."""

    def __init__(
        self,
        chunks: Sequence[nn.Module],
        ranks: Ranks,
        sections: Mapping[int, int],
        experts: Mapping[int, tuple[Any, int | None]],
    ) -> None:
        self._chunks = chunks
        self._ranks = ranks
        self._sections = sections
        self._experts = experts
        seen: set[int] = set()
        found = {id(chunk): list(self._of_chunk(chunk, seen)) for chunk in chunks}
        pairs = [pair for of_chunk in found.values() for pair in of_chunk]
        told = [sharded_layouts(chunk) for chunk in chunks]
        sharded = {at: layout for layouts, _ in told for at, layout in layouts.items()}
        self.all = [parameter for parameter, _ in pairs]
        self.of_chunk = {at: [parameter for parameter, _ in pairs] for at, pairs in found.items()}
        self.problems = [problem for _, problem in told if problem]
        used = [(p, used_layout(known, sharded.get(p.tensor.data_ptr()))) for p, known in pairs]
        self.problems += disagreements(used, sharded)
        self.layouts = {id(p.tensor): layout for p, layout in used}
        self._by_name = {(p.module, p.name): p.tensor for p in self.all}
        self._of_layers = {id(p) for chunk in chunks for p in _parameters_of_layers(chunk)}
        self._of_heads = {id(p) for chunk in chunks for p in _parameters_of_heads(chunk)}

    def layout(self, parameter: nn.Parameter) -> Layout | None:
        return self.layouts[id(parameter)]

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        """The layout of a gradient before any reduction, where it is known."""
        parameter = self._by_name[module, name]
        layout = self.layout(parameter)
        partial = ["cp"] if self._ranks.cp[1] > 1 else []
        partial += self.axes_summed_last(module, name)
        if not partial:
            return layout
        return (layout or Layout.full(parameter.shape)).summed_over(*partial)

    def axes_summed_last(self, module: str, name: str) -> list[str]:
        """Over which a gradient is summed when it is already summed over data and context."""
        parameter = self._by_name[module, name]
        axes = ["tp"] if self._sees_a_part(parameter) else []
        if (module, name) == parameter_name(self._chunks[0], "output_layer", "weight"):
            axes += [EMBEDDING_AXIS] if embedding_end(self._chunks) is not None else []
        return axes

    def _sees_a_part(self, parameter: nn.Parameter) -> bool:
        """Of the heads, or of the sequence: layers do, also where the mark for it was forgotten."""
        if self.layout(parameter) is not None or self._ranks.tp[1] == 1:
            return False
        is_marked = getattr(parameter, "sequence_parallel", False)
        is_scattered = is_marked or id(parameter) in self._of_layers
        return id(parameter) in self._of_heads or (self._ranks.sequence_parallel and is_scattered)

    def _of_chunk(
        self, chunk: nn.Module, seen: set[int]
    ) -> Iterator[tuple[Parameter, Layout | None]]:
        for path, module in walk([chunk]):
            for name, tensor in module.named_parameters(recurse=False):
                if id(tensor) not in seen:
                    seen.add(id(tensor))
                    yield self._described(chunk, path, module, name, tensor)

    def _described(
        self, chunk: nn.Module, path: str, module: nn.Module, name: str, tensor: nn.Parameter
    ) -> tuple[Parameter, Layout | None]:
        owner, known = parameter_name(chunk, path, name)
        layer, expert = self._experts.get(id(module), (None, None))
        if layer is not None and expert is None:
            known = with_global_number(known, layer)
        sections = self._sections.get(id(module), 1)
        is_expert = layer is not None
        layout = parameter_layout(
            module, name, tensor.shape, self._ranks, sections, is_expert=is_expert
        )
        users = tied_users(chunk, owner)
        return Parameter(module=owner, name=known, tensor=tensor, users=users), layout


def _parameters_of_layers(chunk: nn.Module) -> Iterator[nn.Parameter]:
    """Those of every stack of layers; an embedding or a projection before it sees all tokens."""
    for module in chunk.modules():
        if isinstance(getattr(module, "layers", None), nn.ModuleList):
            yield from module.parameters()


def _parameters_of_heads(chunk: nn.Module) -> Iterator[nn.Parameter]:
    """Those of norms that every head goes through, of which each rank has its own."""
    for module in chunk.modules():
        names = next((names for kind, names in _HEAD_NORMS if isinstance(module, kind)), ())
        for norm in (getattr(module, name, None) for name in names):
            yield from norm.parameters() if isinstance(norm, nn.Module) else ()
