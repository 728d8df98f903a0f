"""Rounding to few bits, bit for bit as the formats say: e4m3, e5m2, e2m1, e8m0 scales, and bf16.

Enters: values, scaled already. Leaves: values on the grid, in fp32, or their codes where torch has
a dtype for them. What is drawn for stochastic rounding is drawn by the caller's generator.
"""

from __future__ import annotations

import torch
from torch import Tensor

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2

# The magnitudes of e2m1, by their codes: two bits of exponent, one of mantissa (OCP MX v1.0).
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
E2M1_LARGEST = E2M1[-1]
# e8m0 is a power of two: an exponent with this bias, and 255 for NaN (OCP MX v1.0).
_E8M0_BIAS, _E8M0_LARGEST = 127, 254

_BF16_BITS = 16  # of fp32 that bf16 does not have
_KEPT = ~((1 << _BF16_BITS) - 1)


def largest(dtype: torch.dtype) -> float:
    return float(torch.finfo(dtype).max)


def to_float8(x: Tensor, dtype: torch.dtype, *, saturates: bool = True) -> Tensor:
    """Codes; what is too large becomes the largest number, or overflows as the format says."""
    if saturates:
        x = x.clamp(-largest(dtype), largest(dtype))
    elif dtype is E4M3:  # beyond the largest number and half a step there is NaN alone
        x = x.masked_fill(x.abs() >= largest(dtype) + 16, torch.nan)
    return x.to(dtype)


def to_e2m1(x: Tensor) -> Tensor:
    """To the nearest number, of two to that with an even code; the largest where it is beyond."""
    magnitude = x.abs().float().clamp(max=E2M1_LARGEST)
    # The distance between two neighbours: one half below 2, one from there on, two from 4 on.
    step = 0.5 * (1.0 + (magnitude >= 2) + 2.0 * (magnitude >= 4))
    return torch.round(magnitude / step) * step * x.sign()


def to_e2m1_stochastic(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """Up or down by chance, so that the expected value is the value itself."""
    magnitude = x.abs().float().clamp(max=E2M1_LARGEST)
    step = 0.5 * (1.0 + (magnitude >= 2) + 2.0 * (magnitude >= 4))
    drawn = torch.rand(x.shape, generator=generator, device=x.device)
    return torch.floor(magnitude / step + drawn) * step * x.sign()


def to_bf16_stochastic(x: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """The bits that bf16 does not have say how probable it is that the value is rounded away."""
    drawn = torch.randint(
        1 << _BF16_BITS, x.shape, generator=generator, device=x.device, dtype=torch.int32
    )
    bits = x.float().view(torch.int32)
    return ((bits + drawn) & _KEPT).view(torch.float32).to(torch.bfloat16)


def e8m0_exponents(amax: Tensor, largest_exponent: int) -> Tensor:
    """Of the scales, unbiased: the exponent of the maximum less that of the largest number."""
    _, exponent = torch.frexp(amax.float())  # amax = mantissa in [0.5, 1) times 2 ** exponent
    exponent = exponent - 1 - largest_exponent
    exponent = torch.where(amax == 0, -_E8M0_BIAS, exponent)
    return exponent.clamp(-_E8M0_BIAS, _E8M0_LARGEST - _E8M0_BIAS)


def to_e8m0(exponents: Tensor) -> Tensor:
    """Codes of e8m0 scales."""
    return (exponents + _E8M0_BIAS).to(torch.uint8).view(torch.float8_e8m0fnu)
