"""Readings: the numbers of one comparison that are judged, each with its place.

    norm        0.0226 of the reference's norm
    row         (3, 17) of dims 0, 1
    element     (3, 17, 40)
    gain        a factor of 1.0098

All are norms of a part of the error (a slice, an element, its component along the reference or
along a constant), in the units of the tensor, so none is larger than the norm of the whole error.
Enters: statistics. Leaves: readings. What is acceptable is decided elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ttrace.core.limits import Magnitude
from ttrace.core.statistics import Statistics


class Statistic(StrEnum):
    """What of a tensor is judged."""

    NORM = "norm"
    ROW = "row"  # every dim fixed but the last
    SLICE = "slice"  # one dim fixed
    ELEMENT = "element"
    GAIN = "gain"  # along the reference
    SHIFT = "shift"  # along a constant
    CHOICES = "choices"  # how many whole numbers differ
    GRAIN = "grain"  # bits of mantissa that only one of the runs has
    COINCIDENCE = "coincidence"  # of how parts on different ranks were rounded


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """One number, and the indices of the dims that it fixes."""

    statistic: Statistic
    value: Magnitude
    dims: tuple[int, ...] = ()
    index: tuple[int, ...] = ()

    @property
    def key(self) -> tuple[Statistic, tuple[int, ...]]:
        """The same for the same part of two tensors of one shape."""
        return self.statistic, () if self.statistic is Statistic.ELEMENT else self.dims


def readings(found: Statistics) -> tuple[Reading, ...]:
    """Everything that may be judged; slices and elements only where they were located."""
    parts = [
        Reading(
            statistic=Statistic.SLICE if number else Statistic.ROW,
            value=worst.error_norm,
            dims=worst.dims,
            index=worst.index,
        )
        for number, worst in enumerate(found.slices)  # the first are the rows
    ]
    everywhere = tuple(range(len(found.worst_element)))
    return (
        Reading(statistic=Statistic.NORM, value=found.error_norm),
        *parts,
        Reading(
            statistic=Statistic.ELEMENT,
            value=found.max_error,
            dims=everywhere,
            index=found.worst_element,
        ),
        Reading(statistic=Statistic.GAIN, value=found.along_reference),
        Reading(statistic=Statistic.SHIFT, value=found.along_ones),
        Reading(statistic=Statistic.CHOICES, value=float(found.unequal)),
    )


def in_eps(reading: Reading, found: Statistics, shape: tuple[int, ...], eps: float) -> float | None:
    """The reading in machine epsilons of what the reference has in a part of that size."""
    if not eps or not found.reference_norm or reading.statistic is Statistic.CHOICES:
        return None
    share = 1 / found.parts(shape, reading.dims) if reading.dims else 1.0
    return reading.value / (found.reference_norm * math.sqrt(share)) / eps
