"""Formats: what each dtype can hold, by its bits. Known here, and nowhere else.

    bfloat16        8 bits of exponent, 7 of mantissa    eps 2**-7, up to 3.4e38
    float8_e4m3fn   4, 3, no infinities                  eps 2**-3, up to 448
    float8_e8m0fnu  8, 0, no sign: a scale               powers of two from 2**-127 on
    float4_e2m1fn   2, 1, nothing but numbers            0, 0.5, 1, 1.5, 2, 3, 4, 6

The grain of values is how many bits of mantissa they use, whatever they are stored in: values that
were rounded to bfloat16 use 7 of the 23 of float32, also under a scale that is a power of two.
A precision says in which dtypes the values of one tensor were made, whatever they are stored in.
Values only; what torch calls them is in trace/dtypes.py.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass
from enum import Enum, auto

WIDEST = 52  # bits of mantissa: those of float64


class Specials(Enum):
    """Which codes are no numbers."""

    IEEE = auto()  # all of the highest exponent: infinities, and NaN
    LAST = auto()  # the last of either sign is NaN
    MINUS_ZERO = auto()  # which is NaN
    NONE = auto()


@dataclass(frozen=True, slots=True, kw_only=True)
class Format:
    """A floating dtype: a sign if it has one, an exponent, a mantissa without its leading 1."""

    name: str
    exponent_bits: int
    mantissa_bits: int
    bias: int
    specials: Specials = Specials.IEEE
    is_signed: bool = True
    has_subnormals: bool = True

    @property
    def eps(self) -> float:
        """From 1 to the next number."""
        return 2.0**-self.mantissa_bits

    @property
    def bits(self) -> int:
        return self.is_signed + self.exponent_bits + self.mantissa_bits

    @property
    def smallest_normal(self) -> float:
        return math.ldexp(1.0, self.has_subnormals - self.bias)

    @property
    def smallest(self) -> float:
        """The smallest number above zero."""
        return self.smallest_normal * (self.eps if self.has_subnormals else 1.0)

    @property
    def largest(self) -> float:
        """The largest finite number."""
        codes = 1 << (self.exponent_bits + self.mantissa_bits)
        taken = {Specials.IEEE: 1 << self.mantissa_bits, Specials.LAST: 1}.get(self.specials, 0)
        return self.decode(codes - taken - 1)

    def decode(self, code: int) -> float:
        """The number that these bits are, or NaN, or an infinity."""
        magnitude = code & ((1 << (self.exponent_bits + self.mantissa_bits)) - 1)
        sign = -1.0 if self.is_signed and code != magnitude else 1.0
        exponent, mantissa = divmod(magnitude, 1 << self.mantissa_bits)
        if self._is_special(exponent, mantissa, is_negative=sign < 0):
            is_infinite = self.specials is Specials.IEEE and mantissa == 0
            return sign * math.inf if is_infinite else math.nan
        if exponent == 0 and self.has_subnormals:
            return sign * math.ldexp(mantissa, 1 - self.bias - self.mantissa_bits)
        whole = mantissa + (1 << self.mantissa_bits)
        return sign * math.ldexp(whole, exponent - self.bias - self.mantissa_bits)

    def _is_special(self, exponent: int, mantissa: int, *, is_negative: bool) -> bool:
        top = exponent == (1 << self.exponent_bits) - 1
        if self.specials is Specials.LAST:
            return top and mantissa == (1 << self.mantissa_bits) - 1
        if self.specials is Specials.MINUS_ZERO:
            return is_negative and exponent == mantissa == 0
        return top and self.specials is Specials.IEEE


_ALL = (
    Format(name="float4_e2m1fn", exponent_bits=2, mantissa_bits=1, bias=1, specials=Specials.NONE),
    Format(name="float8_e5m2", exponent_bits=5, mantissa_bits=2, bias=15),
    Format(
        name="float8_e5m2fnuz",
        exponent_bits=5,
        mantissa_bits=2,
        bias=16,
        specials=Specials.MINUS_ZERO,
    ),
    Format(name="float8_e4m3fn", exponent_bits=4, mantissa_bits=3, bias=7, specials=Specials.LAST),
    Format(
        name="float8_e4m3fnuz",
        exponent_bits=4,
        mantissa_bits=3,
        bias=8,
        specials=Specials.MINUS_ZERO,
    ),
    Format(
        name="float8_e8m0fnu",
        exponent_bits=8,
        mantissa_bits=0,
        bias=127,
        specials=Specials.LAST,
        is_signed=False,
        has_subnormals=False,
    ),
    Format(name="bfloat16", exponent_bits=8, mantissa_bits=7, bias=127),
    Format(name="float16", exponent_bits=5, mantissa_bits=10, bias=15),
    Format(name="float32", exponent_bits=8, mantissa_bits=23, bias=127),
    Format(name="float64", exponent_bits=11, mantissa_bits=52, bias=1023),
)
_BY_NAME = {found.name: found for found in _ALL}

# Coarsest first, one of each mantissa: in which values of a grain may have been computed. Scales
# are no values.
COMPUTED_IN = tuple(
    _BY_NAME[name]
    for name in (
        *("float4_e2m1fn", "float8_e5m2", "float8_e4m3fn"),
        *("bfloat16", "float16", "float32", "float64"),
    )
)


def format_of(name: str) -> Format | None:
    """The format of a dtype, by its name; None where it is none of floating numbers."""
    return _BY_NAME.get(name)


@functools.cache
def values_of(name: str) -> tuple[float, ...]:
    """What every code of a format of at most 16 bits is, in their order."""
    found = _BY_NAME[name]
    return tuple(map(found.decode, range(1 << found.bits)))


def grain(mantissa: int) -> int:
    """How many bits of mantissa are used; `mantissa` has all that any value sets, as in float64."""
    return WIDEST + 1 - (mantissa & -mantissa).bit_length() if mantissa else 0


def coarsest(used: int) -> Format:
    """The coarsest format that holds values of this grain, under a power of two as their scale."""
    return next(found for found in COMPUTED_IN if used <= found.mantissa_bits)


# Chosen: one rounding moves a tensor by about a fifth of eps, a sum of a few terms rounds as often.
# What is further off than that, of the coarser format's, was not just rounded.
MOST_ROUNDINGS = 2.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The coarsest format that holds all values of each run, where these are not the same.

    `is_of_own_terms`: the reference is as coarse, and what is finer are the candidate's own terms.
    """

    reference: Format
    candidate: Format
    is_of_own_terms: bool = False

    @property
    def is_lower(self) -> bool:
        """Whether it is the candidate whose values are coarser."""
        return self.candidate.mantissa_bits < self.reference.mantissa_bits

    @property
    def coarser(self) -> Format:
        return self.candidate if self.is_lower else self.reference

    @property
    def apart(self) -> int:
        """How many bits of mantissa only one of them has."""
        return abs(self.candidate.mantissa_bits - self.reference.mantissa_bits)
