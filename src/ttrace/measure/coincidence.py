"""Coincidence: whether two tensors were rounded up and down at the same places.

    rounded by chance     +1  0 -1  0 +1    each element up or down a unit of the last place,
    another rank's part   +1  0 -1 -1 +1    or neither: by independent numbers they agree by chance

Each part is first compared with the reference, which rounds by chance, too: what is left is which
way each element was rounded. By numbers of their own the products of two parts add up to about the
root of how many there are; by the same numbers to a quarter of that many, since both are also
rounded otherwise than the reference. What a row or a column has in common shows as well where one
part is moved by a row or more; that two ranks drew the same numbers shows in its place alone.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

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
