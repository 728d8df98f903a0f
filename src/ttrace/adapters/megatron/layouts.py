"""Where Megatron's modules and ranks stand, and layouts of what modules hold, take and return.

Enters: the chunks of this rank, the config, and where parallel_state says that the rank stands.
Leaves: canonical paths with global numbers of layers and experts, the same for every pipeline,
virtual pipeline and expert parallel split; and the layout of a module's tensor in that of one
microbatch, from the module's class and the config.

Activations are [sequence, batch, hidden]; context parallelism cuts the sequence in zigzag, sequence
parallelism cuts the rest of it between modules, tensor parallelism cuts the hidden dim inside
attention and MLP. Classes that are not listed get no layout: alignment infers it. Transformer
Engine's classes are known by name: they exist only where it is installed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any

from megatron.core import parallel_state
from megatron.core.ssm.gated_delta_net import GatedDeltaNet
from megatron.core.tensor_parallel.layers import (
    ColumnParallelLinear,
    RowParallelLinear,
    VocabParallelEmbedding,
)
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.moe.moe_layer import BaseMoELayer
from torch import nn

from ttrace.core.layout import Layout

_EMBEDDING = "embedding.word_embeddings"
_NUMBERED = re.compile(r"(weight|bias)(\d+)")
Seat = tuple[int, int]  # my index, size
EMBEDDING_AXIS = "pp.embedding"  # the two ends of a pipeline that both hold the tied embedding


def unwrapped(chunk: nn.Module) -> nn.Module:
    """The model inside DistributedDataParallel, Float16Module and the like."""
    while isinstance(inner := getattr(chunk, "module", None), nn.Module):
        chunk = inner
    return chunk


def walk(chunks: Sequence[nn.Module]) -> Iterator[tuple[str, nn.Module]]:
    """Canonical path and module, chunk by chunk, each root first."""
    for chunk in chunks:
        yield from _walk(unwrapped(chunk), "", None)


def _walk(module: nn.Module, path: str, experts: Sequence[int] | None) -> Iterator[Any]:
    yield path, module
    if isinstance(module, BaseMoELayer):
        experts = module.local_expert_indices
    for name, child in module.named_children():
        if isinstance(module, nn.ModuleList):
            name = _global_number(name, child, path, experts)
        yield from _walk(child, f"{path}.{name}" if path else name, experts)


def _global_number(name: str, child: nn.Module, path: str, experts: Sequence[int] | None) -> str:
    if path.endswith("local_experts") and experts is not None:
        return str(experts[int(name)])
    number = getattr(child, "layer_number", None)
    return name if number is None else str(number - 1)  # Megatron counts layers from 1


def is_tied(chunk: nn.Module) -> bool:
    """Whether the output layer uses the embedding's weight, or a copy of it on the last stage."""
    return bool(getattr(chunk, "share_embeddings_and_output_weights", False))


def parameter_name(chunk: nn.Module, path: str, name: str) -> tuple[str, str]:
    """The canonical module and name of a parameter: tied copies go by the embedding's."""
    if is_tied(chunk) and (path, name) == ("output_layer", "weight"):
        return _EMBEDDING, "weight"
    return path, name


def tied_users(chunk: nn.Module, path: str) -> tuple[type, ...]:
    """Every class that uses the tied embedding: each rank must start it on the same scale."""
    is_embedding = is_tied(chunk) and path == _EMBEDDING
    return (VocabParallelEmbedding, ColumnParallelLinear) if is_embedding else ()


def expert_modules(
    modules: Sequence[tuple[str, nn.Module]],
) -> dict[int, tuple[BaseMoELayer, int | None]]:
    """Every module inside experts, with its layer and the local number of its expert."""
    found: dict[int, tuple[BaseMoELayer, int | None]] = {}
    for _, layer in modules:
        if not isinstance(layer, BaseMoELayer):
            continue
        found[id(layer.experts)] = (layer, None)
        if not hasattr(layer.experts, "local_experts"):  # all in one: TEGroupedMLP
            found |= {id(module): (layer, None) for module in layer.experts.modules()}
        for number, expert in enumerate(getattr(layer.experts, "local_experts", ())):
            found |= {id(module): (layer, number) for module in expert.modules()}
    return found


def with_global_number(name: str, layer: BaseMoELayer) -> str:
    """Grouped linears hold a parameter for each local expert: weight0, weight1."""
    numbered = _NUMBERED.fullmatch(name)
    if numbered is None:
        return name
    return f"{numbered[1]}{layer.local_expert_indices[int(numbered[2])]}"


def vocabulary_modules(modules: Sequence[tuple[str, nn.Module]]) -> tuple[str, ...]:
    """Megatron pads the vocabulary to a multiple of the tensor parallel size; nothing says to it.

    The output layer stands for itself also where it uses the embedding's weight.
    """
    return tuple(
        path
        for path, module in modules
        if isinstance(module, VocabParallelEmbedding) or path == "output_layer"
    )


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


def ranks_of(config: Any) -> Ranks:
    return Ranks(
        tp=_axis("tensor_model"),
        cp=_axis("context"),
        ep=_axis("expert_model"),
        etp=_axis("expert_tensor"),
        sequence_parallel=bool(config.sequence_parallel),
    )


def data_axis() -> Seat:
    return _axis("data")


def mesh_axes(ranks: Ranks, chunks: Iterable[nn.Module]) -> dict[str, Seat]:
    """Index and size on every axis over which the model or its batch is spread."""
    axes = {"tp": ranks.tp, "pp": _axis("pipeline_model"), "cp": ranks.cp, "dp": data_axis()}
    if (end := embedding_end(chunks)) is not None:
        axes[EMBEDDING_AXIS] = (end, 2)
    return {name: axis for name, axis in axes.items() if axis[1] > 1}


def embedding_end(chunks: Iterable[nn.Module]) -> int | None:
    """0 on the first, 1 on the last pipeline stage where both hold the tied embedding."""
    tied = any(map(is_tied, chunks))
    rank, size = _axis("pipeline_model")
    if not tied or size == 1 or rank not in (0, size - 1):
        return None
    return int(rank > 0)


def _axis(group: str) -> Seat:
    rank = getattr(parallel_state, f"get_{group}_parallel_rank")
    size = getattr(parallel_state, f"get_{group}_parallel_world_size")
    return int(rank()), int(size())
