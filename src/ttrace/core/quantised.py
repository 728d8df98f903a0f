"""Quantised forms: how codes and scales make up a tensor, and which modules make codes.

    float8_e4m3fn, float32 scales of the whole tensor       per tensor
    float8_e4m3fn, float32 scales of 1x4096                 per row
    float8_e4m3fn, float8_e8m0fnu scales of 1x32            MXFP8
    float4_e2m1fn, float8_e4m3fn scales of 1x16, and one    NVFP4
    float8_e4m3fn, float32 scales of 128x128                blockwise

A block is as many elements along every dim as share a scale; the last one along a dim may be cut
off. Scales stand in row-major order of their blocks, as codes do. Values only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field

from ttrace.core.door import key
from ttrace.core.formats import format_of
from ttrace.core.limits import Label, Size, Sizes
from ttrace.errors import UsageError

INT8 = "int8"
# What can be a code: a number of at most a byte that stands for itself.
CODES = (
    *("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float4_e2m1fn"),
    INT8,
)
SCALES = ("float32", "bfloat16", "float16", "float8_e8m0fnu", "float8_e4m3fn")
OVERALL_BYTES = 4  # of the scale of all scales, in float32


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantisedForm:
    """Of what codes and scales are, and which scale is whose."""

    codes: Label
    scales: Label
    block: Sizes  # elements along every dim that share a scale
    divides: bool = False  # a value is its code divided by the scale, not multiplied
    has_overall: bool = field(default=False, metadata=key("overall"))  # one that scales all scales

    def __post_init__(self) -> None:
        if self.codes not in CODES or self.scales not in SCALES:
            raise UsageError(
                f"codes are one of {', '.join(CODES)} and scales one of {', '.join(SCALES)}, "
                f"found {self.codes!r} and {self.scales!r}"
            )
        if not all(self.block):
            raise UsageError(f"a block has a size of 1 or more along every dim, found {self.block}")

    @property
    def code_bits(self) -> int:
        return _bits(self.codes)

    @property
    def scale_bytes(self) -> int:
        return _bits(self.scales) // 8

    def grid(self, shape: Sequence[int]) -> tuple[int, ...]:
        """How many scales there are along every dim; ValueError where dims are not the block's."""
        if len(shape) != len(self.block):
            raise ValueError(f"a block of {len(self.block)} dims for a tensor of {len(shape)}")
        return tuple(-(-size // block) for size, block in zip(shape, self.block, strict=True))

    def codes_bytes(self, shape: Sequence[int]) -> int:
        return -(-math.prod(shape) * self.code_bits // 8)

    def size_bytes(self, shape: Sequence[int]) -> int:
        """Of codes, scales and the one over them."""
        scales = math.prod(self.grid(shape)) * self.scale_bytes
        return self.codes_bytes(shape) + scales + OVERALL_BYTES * self.has_overall


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptView:
    """What codes and scales of one tensor are."""

    codes: str  # their format
    scales: str
    block: tuple[int, ...]  # elements that share a scale
    zeros: int  # codes
    largest: int  # codes of the largest magnitude that there is, or beyond it
    lowest_scale: float
    highest_scale: float


def largest_code(codes: str) -> float:
    """The largest number that is a code of this format."""
    found = format_of(codes)
    return 127.0 if found is None else found.largest


def _bits(name: str) -> int:
    found = format_of(name)
    return 8 if found is None else found.bits


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantising:
    """`codes`: their dtypes, as far as operators tell; WHOLE_NUMBERS where values were rounded."""

    module: Label
    codes: tuple[Label, ...] = ()


WHOLE_NUMBERS = "whole numbers"


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """`changed`: operators that got the values before the cast; `left`: those that could not."""

    module: Label
    changed: Size = 0
    left: tuple[Label, ...] = ()  # why, each reason once
