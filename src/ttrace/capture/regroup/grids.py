"""Operators that round to a grid of few bits: where their values are, and how long its steps are.

Two correct layouts hand such an operator values that differ by their own rounding. Where one lies
near a border, it gets another code in one of them, and is wrong by a whole step: by 1/16 in e4m3.
In fp32 that is rare, so that a candidate may have one flip where a perturbed run has none. Noise on
what is rounded, as much as flips some codes of every tensor, shows what flips do.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ttrace.core.quantising import WHOLE_NUMBERS
from ttrace.trace.dtypes import dtype_name

_aten = torch.ops.aten
_TO_A_DTYPE, _INTO, _TO_WHOLE = _aten._to_copy, _aten.copy_, (_aten.round, _aten.round_)  # noqa: SLF001
MAKE_CODES = frozenset({_TO_A_DTYPE, _INTO, *_TO_WHOLE})


class Coding(NamedTuple):
    """`place` of the values among the operator's arguments."""

    place: int
    step: Callable[[Tensor], Tensor]
    codes: str  # what comes of it


def coding_of(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Coding | None:
    """None where the operator rounds nothing, or in a dtype that is as fine as others are."""
    packet = func.overloadpacket
    if packet in _TO_WHOLE:
        is_plain = not kwargs and len(args) == 1 and args[0].is_floating_point()
        return (
            Coding(0, torch.ones_like, WHOLE_NUMBERS)
            if is_plain and packet is _aten.round
            else None
        )
    place, into = (1, args[0].dtype) if packet is _INTO else (0, kwargs.get("dtype"))
    values = args[place]
    if not isinstance(into, torch.dtype) or not _is_coarse(into):
        return None
    if not isinstance(values, Tensor) or _is_coarse(values.dtype):
        return None
    if not values.is_floating_point():
        return None
    return Coding(place, lambda value: steps(value, into), dtype_name(into))


def _is_coarse(dtype: torch.dtype) -> bool:
    """Floating-point numbers of one byte."""
    return dtype.is_floating_point and dtype.itemsize == 1


def steps(values: Tensor, dtype: torch.dtype) -> Tensor:
    """From each value to the next number of the dtype; below its normal numbers all are alike."""
    info = torch.finfo(dtype)
    _, exponents = torch.frexp(values)  # values = mantissa in [0.5, 1) times 2 ** exponent
    found = torch.exp2(exponents.to(values.dtype) - 1) * info.eps
    return found.clamp_(min=info.smallest_normal * info.eps)
