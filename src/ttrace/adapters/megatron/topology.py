"""Where this rank stands in Megatron's process groups, as parallel_state says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from megatron.core import parallel_state
from torch import nn

from ttrace.adapters.megatron.layouts import Ranks, Seat
from ttrace.adapters.megatron.paths import is_tied

EMBEDDING_AXIS = "pp.embedding"  # the two ends of a pipeline that both hold the tied embedding


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
