"""The parameters of a Megatron model: canonical names, layouts, and sums that are still to come.

Enters: the chunks of this rank and what is known of their modules. Leaves: every parameter once,
with its layout by class and attributes or, where those say nothing, by `sharded_state_dict`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from torch import nn

from ttrace.adapters.base import Parameter
from ttrace.adapters.megatron.layouts import Ranks, parameter_layout
from ttrace.adapters.megatron.paths import (
    parameter_name,
    tied_users,
    walk,
    with_global_number,
)
from ttrace.adapters.megatron.sharding import disagreements, layout_told, sharded_layouts
from ttrace.adapters.megatron.topology import EMBEDDING_AXIS, embedding_end
from ttrace.core.layout import Layout


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
        self.problems += disagreements(pairs, sharded)
        self.layouts = {id(p.tensor): known or layout_told(p.tensor, sharded) for p, known in pairs}
        self._by_name = {(p.module, p.name): p.tensor for p in self.all}
        self._of_layers = {id(p) for chunk in chunks for p in _parameters_of_layers(chunk)}

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
        axes = ["tp"] if self._sees_a_part_of_the_sequence(parameter) else []
        if (module, name) == parameter_name(self._chunks[0], "output_layer", "weight"):
            axes += [EMBEDDING_AXIS] if embedding_end(self._chunks) is not None else []
        return axes

    def _sees_a_part_of_the_sequence(self, parameter: nn.Parameter) -> bool:
        """The mark is left off by mistake, but layers get scattered sequences anyway."""
        if self.layout(parameter) is not None or not self._ranks.sequence_parallel:
            return False
        is_marked = getattr(parameter, "sequence_parallel", False)
        return self._ranks.tp[1] > 1 and (is_marked or id(parameter) in self._of_layers)

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
