"""Modules for Megatron on CPU: a norm for sequence parallelism, an attention for context parallel.

Imported only where megatron-core is: its classes are the bases.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from megatron.core.transformer.dot_product_attention import DotProductAttention
from megatron.core.transformer.transformer_config import TransformerConfig
from torch import nn


class SequenceParallelNorm(nn.RMSNorm):
    """Torch's RMSNorm; its weight says that its gradient is to be summed over tensor parallel."""

    def __init__(
        self, config: TransformerConfig, hidden_size: int, eps: float = 1e-5, **_: Any
    ) -> None:
        super().__init__(hidden_size, eps=eps, dtype=config.params_dtype)
        self.weight.sequence_parallel = config.sequence_parallel  # type: ignore[attr-defined]


class ContextParallelAttention(DotProductAttention):  # type: ignore[misc]
    """Gathers keys and values over the context-parallel group; queries stay where they are."""

    def __init__(self, config: TransformerConfig, *args: Any, **kwargs: Any) -> None:
        size, config.context_parallel_size = config.context_parallel_size, 1
        try:
            super().__init__(config, *args, **kwargs)
        finally:
            config.context_parallel_size = size
        self.cp_group = kwargs["pg_collection"].cp

    def forward(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        attention_mask: torch.Tensor | None,
        **kwargs: Any,
    ) -> torch.Tensor:
        group = self.cp_group
        whole_key, whole_value = (_GatherSequence.apply(part, group) for part in (key, value))
        mask = _causal_mask(query.size(0), group).to(query.device)
        return super().forward(query, whole_key, whole_value, mask, **kwargs)


class _GatherSequence(torch.autograd.Function):
    """Zigzag chunks of all ranks in the order of the sequence; gradients are summed on the way."""

    @staticmethod
    def forward(ctx: Any, local: torch.Tensor, group: dist.ProcessGroup) -> torch.Tensor:
        ctx.group = group
        parts = [torch.empty_like(local) for _ in range(group.size())]
        dist.all_gather(parts, local.contiguous(), group=group)
        halves = [part.chunk(2) for part in parts]
        return torch.cat([low for low, _ in halves] + [high for _, high in reversed(halves)])

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor) -> tuple[torch.Tensor, None]:
        total = grads[0].contiguous().clone()
        dist.all_reduce(total, group=ctx.group)
        chunks, rank = total.chunk(2 * ctx.group.size()), ctx.group.rank()
        return torch.cat([chunks[rank], chunks[-1 - rank]]), None


def _causal_mask(length: int, group: dist.ProcessGroup) -> torch.Tensor:
    """True where a query of this rank must not look."""
    count, rank = group.size(), group.rank()
    chunks = torch.arange(length * count).chunk(2 * count)
    mine = torch.cat([chunks[rank], chunks[-1 - rank]])
    everything = torch.arange(length * count)
    return (everything[None, :] > mine[:, None])[None, None]
