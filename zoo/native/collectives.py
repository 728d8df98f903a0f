"""Collectives with a gradient over all ranks, as hand-written parallel layers use them.

In a process group of one rank, as the reference has it, all of them are the identity.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor


def summed(tensor: Tensor) -> Tensor:
    result = tensor.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(result)
    return result


def gathered(tensor: Tensor, dim: int) -> Tensor:
    """The ranks' parts side by side along `dim`."""
    parts = [torch.empty_like(tensor, memory_format=torch.contiguous_format) for _ in _ranks()]
    dist.all_gather(parts, tensor.contiguous())
    return torch.cat(parts, dim)


def own_part(tensor: Tensor, dim: int) -> Tensor:
    return tensor.chunk(dist.get_world_size(), dim)[dist.get_rank()].contiguous()


def exchanged(tensor: Tensor, split: int, join: int) -> Tensor:
    """All-to-all: gives away parts along `split`, puts what it gets side by side along `join`."""
    given = [part.contiguous() for part in tensor.chunk(dist.get_world_size(), split)]
    taken = torch.empty((len(given), *given[0].shape), dtype=tensor.dtype)
    dist.all_to_all_single(taken, torch.stack(given))
    return torch.cat(list(taken), join)


def _ranks() -> range:
    return range(dist.get_world_size())


class CopyToRanks(torch.autograd.Function):
    """The same value is used on every rank: their gradients are summed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return tensor.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return summed(grads[0])


class SumOverRanks(torch.autograd.Function):
    """Every rank holds a term: all get the sum, and its gradient as it is."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return summed(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return grads[0].clone()


class Scatter(torch.autograd.Function):
    """Each rank keeps its part along `dim` of a value that all hold; gradients are gathered."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        return own_part(tensor, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return gathered(grads[0], ctx.dim), None


class Gather(torch.autograd.Function):
    """Parts along `dim` of all ranks, each used by all: gradients are summed, then cut."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, dim: int) -> Tensor:
        ctx.dim = dim
        return gathered(tensor, dim)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return own_part(summed(grads[0]), ctx.dim), None


class Exchange(torch.autograd.Function):
    """All-to-all from parts along `join` to parts along `split`; the way back in backward."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, split: int, join: int) -> Tensor:
        ctx.split, ctx.join = split, join
        return exchanged(tensor, split, join)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        return exchanged(grads[0], ctx.join, ctx.split), None, None
