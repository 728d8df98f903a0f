"""Layouts of what Megatron's modules hold, take and return, from their classes and the config.

Enters: this rank's coordinates, a module, a shape. Leaves: the layout in the tensor of one
microbatch. Activations are [sequence, batch, hidden]; context parallelism cuts the sequence in
zigzag, sequence parallelism cuts the rest of it between modules, tensor parallelism cuts the hidden
dim inside attention and MLP. Classes that are not listed get no layout: alignment infers it.
Transformer Engine's classes are known by name: they exist only where it is installed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from megatron.core.ssm.gated_delta_net import GatedDeltaNet
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from megatron.core.transformer.dot_product_attention import DotProductAttention
from torch import nn

from ttrace.core.layout import Layout

Seat = tuple[int, int]  # my index, size


class Role(Enum):
    """How a module splits what it holds and what passes through it."""

    COLUMN = "column"
    ROW = "row"
    VOCABULARY = "vocabulary"
    ATTENTION = "attention"


_CLASSES: tuple[tuple[type, Role], ...] = (
    (ColumnParallelLinear, Role.COLUMN),
    (RowParallelLinear, Role.ROW),
    (VocabParallelEmbedding, Role.VOCABULARY),
    (DotProductAttention, Role.ATTENTION),
)
_NAMES = {
    "TEColumnParallelLinear": Role.COLUMN,
    "TELayerNormColumnParallelLinear": Role.COLUMN,
    "TEColumnParallelGroupedLinear": Role.COLUMN,
    "TERowParallelLinear": Role.ROW,
    "TERowParallelGroupedLinear": Role.ROW,
    "TEDotProductAttention": Role.ATTENTION,
}


def role_of(module: nn.Module) -> Role | None:
    for kind, role in _CLASSES:
        if isinstance(module, kind):
            return role
    names = (kind.__name__ for kind in type(module).__mro__)
    return next((_NAMES[name] for name in names if name in _NAMES), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks:
    """This rank on every axis that splits tensors."""

    tp: Seat
    cp: Seat
    ep: Seat
    etp: Seat
    sequence_parallel: bool

    def tensor_axis(self, module: nn.Module) -> tuple[str, Seat]:
        """Experts have a tensor parallel size of their own."""
        return ("etp", self.etp) if getattr(module, "is_expert", False) else ("tp", self.tp)


def parameter_layout(
    module: nn.Module,
    name: str,
    shape: Sequence[int],
    ranks: Ranks,
    sections: int,
    *,
    is_expert: bool = False,
) -> Layout | None:
    """Where a parameter's shard sits; None where neither class nor attributes say it is split."""
    dim = _split_dim(module, name)
    if dim is None:
        return None
    axis = ranks.etp if is_expert else ranks.tensor_axis(module)[1]
    return shard_of(Layout.full(shape), dim, *axis, sections if dim == 0 else 1)


def _split_dim(module: nn.Module, name: str) -> int | None:
    """By class first: a wrong attribute is one of the mistakes to find."""
    role = role_of(module)
    if role is Role.COLUMN:
        return None if name.startswith("layer_norm") else 0  # a norm fused into it is whole
    if role is Role.ROW:
        return 1 if name.startswith("weight") else None
    if role is Role.VOCABULARY:
        return 0
    parameter: Any = module._parameters.get(name)  # noqa: SLF001
    dim = int(getattr(parameter, "partition_dim", -1))
    return dim if dim >= 0 and getattr(parameter, "tensor_model_parallel", False) else None


def sections_of(modules: Sequence[tuple[str, nn.Module]]) -> dict[int, int]:
    """Linear layers whose output stands in sections that are each split: gate and up."""
    return {
        id(module.linear_fc1): 2
        for _, module in modules
        if isinstance(getattr(module, "linear_fc1", None), nn.Module)
        and getattr(getattr(module, "config", None), "gated_linear_unit", False)
    }


def heads_of_norms(modules: Sequence[tuple[str, nn.Module]]) -> dict[int, int]:
    """Norms whose rows are the heads of a delta net in turn, and how many it has on this rank."""
    return {
        id(module.out_norm): module.num_v_heads_local_tp
        for _, module in modules
        if isinstance(module, GatedDeltaNet)
    }


def sequence_layout(shape: Sequence[int], ranks: Ranks, *, dim: int = 0, scattered: bool) -> Layout:
    """[sequence, batch, ...]: the sequence cut by context and, if scattered, tensor parallel."""
    tp_index, tp = ranks.tp if scattered else (0, 1)
    whole = [size * ranks.cp[1] * tp if at == dim else size for at, size in enumerate(shape)]
    layout = Layout.full(whole)
    if ranks.cp[1] > 1:
        layout = layout.zigzag(dim, *ranks.cp)
    return layout.shard(dim, tp_index, tp) if tp > 1 else layout


def shard_of(layout: Layout, dim: int, index: int, count: int, sections: int = 1) -> Layout:
    """A layout whose local tensor turns out to be one part of `count` along a dim."""
    size = layout.shape[dim] * count
    parts = [size // sections] * sections
    return part_of(layout, dim, Layout.full([size]).interleaved(0, parts, index, count))


def part_of(layout: Layout, dim: int, part: Layout) -> Layout:
    """A layout whose local tensor turns out to be what `part` holds of its first dim."""
    shape = (*layout.shape[:dim], part.shape[0], *layout.shape[dim + 1 :])
    runs = (*layout.runs[:dim], part.runs[0], *layout.runs[dim + 1 :])
    return Layout(shape=shape, runs=runs, partial=layout.partial)


def column_layout(shape: Sequence[int], ranks: Ranks, axis: Seat, dim: int) -> Layout:
    """The sequence whole but for context parallelism, one other dim cut by tensor parallelism."""
    return shard_of(sequence_layout(shape, ranks, scattered=False), dim, *axis)
