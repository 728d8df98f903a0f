"""Rounding: how far values of one dtype lie apart, and how they came to be rounded.

Units in the last place: how many floats lie between two of one dtype.

    0.0 and the smallest number above it    1
    1.0 and 1.0 + eps                       1
    -0.0 and 0.0                            0

Witnesses: values that show that a coarse tensor was rounded, and is not coarse by chance. Few
different values are coarse by themselves: masks, weights that are all 1, powers of two.

    fine 0.10009766, coarse 0.10009765625   the fine one has bits that the coarse format has not
    fine 1.0000001, coarse 1                a last place of float32: both stand for 1
    fine 0.3, coarse 0                      zeros are in every format

Coincidence: whether two tensors were rounded up and down at the same places.

    rounded by chance     +1  0 -1  0 +1    each element up or down a unit of the last place,
    another rank's part   +1  0 -1 -1 +1    or neither: by independent numbers they agree by chance

Each part is first compared with the reference, which rounds by chance, too: what is left is which
way each element was rounded. By numbers of their own the products of two parts add up to about the
root of how many there are; by the same numbers to a quarter of that many, since both are also
rounded otherwise than the reference. What a row or a column has in common shows as well where one
part is moved by a row or more; that two ranks drew the same numbers shows in its place alone.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

_AS_WHOLE = {1: np.int8, 2: np.int16, 4: np.int32, 8: np.int64}  # by bytes of an element


def bits_of(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The bits of a contiguous tensor as whole numbers of its width."""
    return tensor.view(torch.uint8).numpy().view(_AS_WHOLE[tensor.element_size()])


def count_ulps_between(
    reference: npt.NDArray[Any], candidate: npt.NDArray[Any]
) -> npt.NDArray[Any]:
    """What lies between floats of either sign, given their bits; they must be finite."""
    a, b = _in_order(reference), _in_order(candidate)
    unsigned = np.uint64 if a.itemsize == 8 else np.uint32  # whose difference cannot overflow
    return np.maximum(a, b).view(unsigned) - np.minimum(a, b).view(unsigned)


def count_magnitudes(apart: npt.NDArray[Any]) -> list[int]:
    """How many distances are 0, then how many are 2**(n-1) to 2**n - 1, up to the largest."""
    top = int(apart.max()).bit_length() if apart.size else 0
    at_least = [apart.size, *(int(np.count_nonzero(apart >= 2**n)) for n in range(top)), 0]
    return [more - fewer for more, fewer in itertools.pairwise(at_least)]


def _in_order(bits: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Floats of either sign in one order, in which neighbours differ by 1 and -0 is 0."""
    wide = np.int64 if bits.itemsize == 8 else np.int32
    sign: npt.NDArray[Any] = (bits >> (8 * bits.itemsize - 1)).astype(wide)  # 0 or -1
    magnitude: npt.NDArray[Any] = (bits & np.iinfo(bits.dtype).max).astype(wide)
    return (magnitude ^ sign) - sign


ENOUGH = 64  # chosen: more tell nothing new
# Of the distance of two numbers of the format. Chosen: rounding noise of finer formats is below a
# thousandth of it, and three quarters of all values are further from both.
_CLEARLY = 1 / 8


class Witnesses:
    """Counts the different ones, as far as there are enough; `mantissa_bits` of the coarse."""

    def __init__(self, mantissa_bits: int) -> None:
        self._units = float(2 ** (mantissa_bits + 1))  # between powers of two
        self._seen: set[float] = set()

    @property
    def count(self) -> int:
        return min(len(self._seen), ENOUGH)

    @property
    def are_enough(self) -> bool:
        return len(self._seen) >= ENOUGH

    def add(self, coarse: torch.Tensor, fine: torch.Tensor) -> None:
        wide, kept = fine.double().flatten(), coarse.double().flatten()
        place = torch.frexp(wide).mantissa * self._units
        is_between = (place - place.round()).abs() >= _CLEARLY
        counts = is_between & (kept != 0) & kept.isfinite() & wide.isfinite()
        self._seen.update(kept[counts].unique()[:ENOUGH].tolist())


# Chosen: neighbours that say what is alike for other reasons.
SHIFTS = 4
_UNITS = 1.5  # chosen: an element that is further off was not just rounded otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class Coincidence:
    """Sums of products of two parts, in place and then moved by one row and more."""

    sums: tuple[float, ...] = (0.0,) * (1 + SHIFTS)
    variance: float = 0.0  # of each sum, by independent numbers
    size: float = 0.0  # that of the first where both are the same

    def __add__(self, other: Coincidence) -> Coincidence:
        return Coincidence(
            sums=tuple(a + b for a, b in zip(self.sums, other.sums, strict=True)),
            variance=self.variance + other.variance,
            size=self.size + other.size,
        )

    @property
    def deviations(self) -> tuple[float, ...]:
        """Each sum by its standard deviation."""
        spread = math.sqrt(self.variance)
        return tuple(each / spread if spread else 0.0 for each in self.sums)

    @property
    def correlation(self) -> float:
        """1 where both are the same."""
        return self.sums[0] / self.size if self.size else 0.0


def roundings(
    expected: torch.Tensor, found: torch.Tensor, mantissa_bits: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """By how many units each element was rounded otherwise: towards more, and away from zero."""
    reference, candidate = expected.double(), found.double()
    largest = torch.maximum(reference.abs(), candidate.abs())
    exponent = torch.frexp(largest).exponent - 1 - mantissa_bits
    units = torch.ldexp(candidate - reference, -exponent)
    units[~(units.abs() <= _UNITS)] = 0
    return units, units * reference.sign()


def coincidence(first: torch.Tensor, second: torch.Tensor) -> Coincidence:
    """Of two matrices of roundings; vectors are columns."""
    sums = (float((first * second.roll(shift, 0)).sum()) for shift in range(1 + SHIFTS))
    return Coincidence(
        sums=tuple(sums),
        variance=float((first.square() * second.square()).sum()),
        size=float(first.norm() * second.norm()),
    )
