"""By what may the gradients of a correct run be larger than the reference's, before reduction?

A rank divides its loss by what it knows: its own tokens, its microbatches. The data-parallel
average comes later, so a correct activation gradient is dp times the reference's shard. Only scales
that splitting the batch explains are allowed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from ttrace.errors import UsageError

# Gains of bf16 gradients have a noise of 1e-4 to 1e-3 (measured); group sizes differ by a factor of
# at least 1.1.
MARGIN = 0.03
# Gains of fp32 gradients have a noise of 1e-7 (measured); numbers that a program may hold are
# further apart than this, powers of two than what tells scales apart.
_FRACTION_MARGIN = 1e-6
_LARGEST_DENOMINATOR = 100  # chosen: of 1.01; larger scales have smaller ones, 1000 is whole


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """The scales that a correct run may have, and the one that a run is likely to have."""

    allowed: tuple[float, ...] = (1.0,)
    likely: float = 1.0

    def __post_init__(self) -> None:
        if not self.allowed or not all(0 < scale < math.inf for scale in self.allowed):
            raise UsageError(f"scales are numbers above 0, and at least one; found {self.allowed}")

    def nearest(self, gain: float) -> float:
        """The allowed scale that a measured gain is nearest to, by ratio."""
        return min(self.allowed, key=lambda scale: abs(math.log(scale / abs(gain))))

    def of(self, gain: float) -> float:
        """The allowed scale that a gain is; the likely one where it is none."""
        return self.likely if self.is_none(gain) else self.nearest(gain)

    def is_none(self, gain: float) -> bool:
        """Whether a gain is none of the allowed scales."""
        return abs(gain / self.nearest(gain) - 1) > MARGIN


def written_scale(gain: float) -> float:
    """The number that a program holds where a gain was measured, noise and all.

    A scale is a power of two, a whole number or a plain fraction; what is none of them stays.
    """
    power = 2.0 ** round(math.log2(gain))
    if abs(gain / power - 1) <= MARGIN / 10:
        return power
    if gain < 1:
        return 1 / written_scale(1 / gain)
    denominator = max(1, int(_LARGEST_DENOMINATOR / gain))
    fraction = float(Fraction(gain).limit_denominator(denominator))
    return fraction if abs(gain / fraction - 1) <= _FRACTION_MARGIN else gain


def declared_scale(reference: int | None, candidate: int | None) -> float | None:
    """Where both frameworks say over how many ranks they average gradients, nothing is guessed."""
    return None if reference is None or candidate is None else candidate / reference


def explained_scales(
    reference_splits: Sequence[int], candidate_splits: Sequence[int]
) -> tuple[float, ...]:
    """Into how many parts each run splits the batch, over microbatches, ranks and both."""
    return tuple(
        sorted(
            {
                factor
                for reference in (1, *reference_splits)
                for candidate in (1, *candidate_splits)
                for factor in (candidate / reference, 1 / candidate / reference)
            }
        )
    )
