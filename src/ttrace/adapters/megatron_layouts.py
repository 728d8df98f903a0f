"""Layouts of what Megatron's modules hold, take and return, from their classes and the config.

Enters: this rank's coordinates, a module, a shape. Leaves: the layout in the tensor of one
microbatch. Activations are [sequence, batch, hidden]; context parallelism cuts the sequence in
zigzag, sequence parallelism cuts the rest of it between modules, tensor parallelism cuts the hidden
dim inside attention and MLP. Classes that are not listed get no layout: alignment infers it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from megatron.core.transformer.mlp import MLP
from torch import nn

from ttrace.core.layout import Layout

Axis = tuple[int, int]  # my index, size


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank on every axis that splits tensors."""

    tp: Axis
    cp: Axis
    ep: Axis
    etp: Axis
    sequence_parallel: bool

    def tensor_axis(self, module: nn.Module) -> tuple[str, Axis]:
        """Experts have a tensor parallel size of their own."""
        return ("etp", self.etp) if getattr(module, "is_expert", False) else ("tp", self.tp)


def parameter_layout(
    module: nn.Module, name: str, shape: Sequence[int], ranks: Ranks, sections: int
) -> Layout | None:
    """Where a parameter's shard sits; None where neither class nor attributes say it is split."""
    dim = _split_dim(module, name)
    if dim is None:
        return None
    axis = ranks.tensor_axis(module)[1]
    return split(Layout.full(shape), dim, *axis, sections if dim == 0 else 1)


def _split_dim(module: nn.Module, name: str) -> int | None:
    """By class first: a wrong attribute is one of the mistakes to find."""
    if isinstance(module, ColumnParallelLinear):
        return 0
    if isinstance(module, RowParallelLinear):
        return 1 if name == "weight" else None
    if isinstance(module, VocabParallelEmbedding):
        return 0
    parameter: Any = module._parameters.get(name)  # noqa: SLF001
    dim = int(getattr(parameter, "partition_dim", -1))
    return dim if dim >= 0 and getattr(parameter, "tensor_model_parallel", False) else None


def sections_of(modules: Sequence[tuple[str, nn.Module]]) -> dict[int, int]:
    """Linear layers whose output stands in sections that are each split: gate and up."""
    return {
        id(module.linear_fc1): 2
        for _, module in modules
        if isinstance(module, MLP) and module.config.gated_linear_unit
    }


def sequence_layout(shape: Sequence[int], ranks: Ranks, *, dim: int = 0, scattered: bool) -> Layout:
    """[sequence, batch, ...]: the sequence cut by context and, if scattered, tensor parallel."""
    tp_index, tp = ranks.tp if scattered else (0, 1)
    whole = [size * ranks.cp[1] * tp if at == dim else size for at, size in enumerate(shape)]
    layout = Layout.full(whole)
    if ranks.cp[1] > 1:
        layout = layout.zigzag(dim, *ranks.cp)
    return layout.shard(dim, tp_index, tp) if tp > 1 else layout


def split(layout: Layout, dim: int, index: int, count: int, sections: int = 1) -> Layout:
    """A layout whose local tensor turns out to be one part of `count` along a dim."""
    whole = [size * count if at == dim else size for at, size in enumerate(layout.shape)]
    runs = list(layout.runs)
    part = whole[dim] // sections
    runs[dim] = Layout.full([whole[dim]]).interleaved(0, [part] * sections, index, count).runs[0]
    return Layout(shape=tuple(whole), runs=tuple(runs), partial=layout.partial)


def column_layout(
    shape: Sequence[int], ranks: Ranks, axis: Axis, dim: int, sections: int
) -> Layout:
    """The sequence whole but for context parallelism, one other dim cut by tensor parallelism."""
    return split(sequence_layout(shape, ranks, scattered=False), dim, *axis, sections)
