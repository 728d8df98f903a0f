"""Schemes: which numbers of a matrix share a scale, and on which grid they come to lie.

    Rowwise().quantise(x, Operand.INPUT, split=None).values()

Enters: a matrix whose last dim is the one that a product sums over, and the dim that ranks of
tensor parallelism have split, if any. Leaves: codes and scales. Where a scale is that of numbers on
several ranks, its maximum is taken over all of them, so that the codes are those of one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

import torch
import torch.distributed as dist
from torch import Tensor

from zoo.lowprecision.formats import (
    E2M1_LARGEST,
    E4M3,
    E5M2,
    e8m0_exponents,
    largest,
    to_e2m1,
    to_e2m1_stochastic,
    to_float8,
)

_SMALLEST_AMAX = 1e-12  # torchao's: no division by zero
_E4M3_EXPONENT = 8  # of the largest number, 448
MX_BLOCK, NV_BLOCK = 32, 16  # as the formats say


class Operand(StrEnum):
    INPUT = "input"
    WEIGHT = "weight"
    GRADIENT = "gradient"


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantised:
    """Numbers are codes times scales; `block` are the rows and columns that share one."""

    codes: Tensor
    scales: Tensor
    block: tuple[int, int]

    def values(self) -> Tensor:
        scales = self.scales
        for dim, size in enumerate(self.block):
            if scales.shape[dim] not in (1, self.codes.shape[dim]):
                scales = scales.repeat_interleave(size, dim)
        return self.codes.float() * scales


class Scheme(Protocol):
    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised: ...


def over_ranks(amax: Tensor) -> Tensor:
    """The maximum over all ranks of the layout."""
    amax = amax.clone(memory_format=torch.contiguous_format)
    dist.all_reduce(amax, dist.ReduceOp.MAX)
    return amax


def amax_of_blocks(x: Tensor, block: tuple[int, int]) -> Tensor:
    rows, columns = block
    return x.abs().float().unflatten(0, (-1, rows)).unflatten(2, (-1, columns)).amax((1, 3))


def to_scale(amax: Tensor, dtype: torch.dtype) -> Tensor:
    """By which codes are multiplied; 1 / x in fp64, as torchao does it."""
    return (amax.double().clamp(min=_SMALLEST_AMAX) / largest(dtype)).float()


def powers_of_two(scale: Tensor) -> Tensor:
    """Rounded up, so that nothing is too large."""
    return torch.exp2(torch.ceil(torch.log2(scale)))


def _coded(x: Tensor, scales: Tensor, block: tuple[int, int], dtype: torch.dtype) -> Quantised:
    whole = scales
    for dim, size in enumerate(block):
        if whole.shape[dim] not in (1, x.shape[dim]):
            whole = whole.repeat_interleave(size, dim)
    return Quantised(codes=to_float8(x.float() / whole, dtype), scales=scales, block=block)


def float8_of(operand: Operand) -> torch.dtype:
    """Gradients have the larger range."""
    return E5M2 if operand is Operand.GRADIENT else E4M3


@dataclass(frozen=True, slots=True, kw_only=True)
class Tensorwise:
    """One scale; `reduces` is false where each tensor-parallel rank has one of its own."""

    reduces: bool = True
    dtype_of: Callable[[Operand], torch.dtype] = float8_of

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        amax = x.abs().amax().float().reshape(1, 1)
        if split is not None and self.reduces:
            amax = over_ranks(amax)
        dtype = self.dtype_of(operand)
        return _coded(x, to_scale(amax, dtype), (x.shape[0], x.shape[1]), dtype)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rowwise:
    """A scale for each row of both operands, a power of two, and e4m3 for gradients too."""

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        amax = x.abs().amax(1, keepdim=True).float()
        if split == 1:
            amax = over_ranks(amax)
        scales = powers_of_two(to_scale(amax, E4M3))
        return _coded(x, scales, (1, x.shape[1]), E4M3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Blockwise:
    """DeepSeek-V3's: tiles of one row for activations and gradients, squares for weights."""

    size: int = 16  # 128 as published; chosen small, as the models are

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        block = (self.size if operand is Operand.WEIGHT else 1, self.size)
        return _coded(x, to_scale(amax_of_blocks(x, block), E4M3), block, E4M3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Mx:
    """MXFP8: e4m3, and an e8m0 scale for 32 numbers in a row."""

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        block = (1, MX_BLOCK)
        scales = torch.exp2(e8m0_exponents(amax_of_blocks(x, block), _E4M3_EXPONENT).float())
        return _coded(x, scales, block, E4M3)


@dataclass(frozen=True, slots=True, kw_only=True)
class Nv:
    """NVFP4: e2m1, an e4m3 scale for 16 numbers in a row, and one in fp32 for all of these.

    `rounds` says how gradients come onto the grid: to the nearest number, or by chance.
    """

    rounds: Callable[[Tensor], Tensor] = to_e2m1

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        block = (1, NV_BLOCK)
        amax = amax_of_blocks(x, block)
        whole = amax.amax().reshape(1, 1)
        if split is not None:
            whole = over_ranks(whole)
        of_all = whole.clamp(min=_SMALLEST_AMAX) / (largest(E4M3) * E2M1_LARGEST)
        of_block = to_float8(amax / E2M1_LARGEST / of_all, E4M3).float()
        scales = of_block * of_all
        divisor = scales.clamp(min=_SMALLEST_AMAX).repeat_interleave(NV_BLOCK, 1)
        rounds = self.rounds if operand is Operand.GRADIENT else to_e2m1
        return Quantised(codes=rounds(x.float() / divisor), scales=scales, block=block)


STOCHASTIC_NV = Nv(rounds=to_e2m1_stochastic)
