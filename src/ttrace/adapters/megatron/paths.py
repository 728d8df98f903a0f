"""Where the modules of a Megatron model stand in the whole model.

Enters: the chunks of this rank. Leaves: canonical paths with global numbers of layers and experts,
the same for every pipeline, virtual pipeline and expert parallel split.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from megatron.core.tensor_parallel.layers import ColumnParallelLinear, VocabParallelEmbedding
from megatron.core.transformer.moe.moe_layer import BaseMoELayer
from torch import nn

_EMBEDDING = "embedding.word_embeddings"
_NUMBERED = re.compile(r"(weight|bias)(\d+)")


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
