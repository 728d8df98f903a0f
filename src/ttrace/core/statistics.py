"""Statistics: how far a candidate tensor is from its reference, in one pass over both.

    relative_error  0.0226            ||candidate - reference|| / ||reference||
    gain            1.0098            <candidate, reference> / <reference, reference>
    worst_element   (3, 17, 40)       where |candidate - reference| is largest
    peak            3.7               the largest magnitude in the reference
    slices          row (3, 17) ...   where the norm of the error is largest
    max_ulp         12                the largest distance in units in the last place
    unequal         14,789 of 16,384  (2% noise hides a factor of 1.01 from all but the gain)
    grains          23 and 7          bits of mantissa that values use: fp32, rounded to bf16

Readings are those of their numbers that are judged, each with its place. All are norms of a part of
the error (a slice, an element, its component along the reference or along a constant), in the units
of the tensor, so none is larger than the norm of the whole error:

    norm        0.0226 of the reference's norm
    row         (3, 17) of dims 0, 1
    element     (3, 17, 40)
    gain        a factor of 1.0098

A judgement is a reading against what is allowed. Values only: statistics are measured by
measure/accumulator.py, and what is acceptable is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Annotated

from ttrace.core.door import INLINE
from ttrace.core.formats import WIDEST
from ttrace.core.limits import Between, Magnitude, Size

Grain = Annotated[int, Between(0, WIDEST)]  # bits of mantissa (formats.py)


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """The worst of the slices that fix these dims."""

    dims: tuple[int, ...]
    index: tuple[int, ...]
    error_norm: Magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What one pass over a pair measured; complex numbers count as two elements each.

    An element that is NaN or Inf on either side is left out, on both sides, of all norms and sums,
    and counted unless both are the same infinity, as in a mask. `unequal` looks at values: NaN
    equals NaN, and 0 equals -0. `dot`, and the square of `candidate_norm`, are accurate on the
    scale of (reference_norm + error_norm)**2, and `gain` to about 1e-6 of relative_error. Places
    are indices of the logical tensor, and empty where nothing differs or where only pieces were
    given.
    """

    count: Size
    error_norm: Magnitude
    reference_norm: Magnitude
    candidate_norm: Magnitude
    dot: float
    max_error: Magnitude
    error_sum: float
    nonfinite_reference: Size
    nonfinite_candidate: Size
    unequal: Size
    peak: Magnitude = 0.0  # the largest magnitude in the reference
    max_ulp: int | None = None  # of two tensors of one floating dtype
    worst_element: tuple[int, ...] = ()
    slices: tuple[Slice, ...] = ()
    reference_grain: Grain | None = None  # None where the values at hand do not tell
    candidate_grain: Grain | None = None
    cells: tuple[Size, ...] = ()  # of fingerprints: places are first elements of cells of this size

    def parts(self, shape: Sequence[int], dims: Sequence[int]) -> int:
        """How many parts of a tensor of this shape fix these dims: indices, or cells of them."""
        sizes = self.cells or (1,) * len(shape)
        return math.prod(-(-shape[dim] // sizes[dim]) for dim in dims)

    @property
    def relative_error(self) -> float:
        """In units of the reference; infinite if only the reference is zero."""
        if self.reference_norm == 0:
            return 0.0 if self.error_norm == 0 else math.inf
        return self.error_norm / self.reference_norm

    @property
    def gain(self) -> float:
        """The factor that best maps the reference on the candidate; NaN for a zero reference."""
        # Not dot / norm**2, which would underflow for a tiny tensor.
        if self.reference_norm == 0:
            return math.nan
        return self.dot / self.reference_norm / self.reference_norm

    @property
    def equal(self) -> bool:
        return self.unequal == 0

    @property
    def along_reference(self) -> float:
        """The part of the error along the reference: |gain - 1| times the reference's norm."""
        # Without an error the gain is 1 to the last place only.
        exact = self.error_norm == 0 or self.reference_norm == 0
        return 0.0 if exact else abs(self.gain - 1) * self.reference_norm

    @property
    def residual(self) -> float:
        """The relative error that is left when the candidate is divided by its gain."""
        if self.reference_norm == 0 or not math.isfinite(self.gain):
            return math.inf
        left = self.error_norm**2 - self.along_reference**2
        return math.sqrt(max(left, 0.0)) / self.reference_norm

    @property
    def along_ones(self) -> float:
        """The part of the error that is the same everywhere: |mean shift| times sqrt(count)."""
        return abs(self.error_sum) / math.sqrt(self.count) if self.count else 0.0


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How large one reading may be: of a statistic, and of the dims it fixes."""

    statistic: Statistic
    dims: tuple[int, ...]
    allowed: Magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far the candidate may be from the reference, where that comes from, and finer limits."""

    error_norm: Magnitude
    source: str
    noise: Magnitude | None = None  # that was measured, where it was
    limits: tuple[Limit, ...] = ()
    cells: tuple[Size, ...] = ()  # of fingerprints, whose parts the limits are for


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One reading against what is allowed."""

    reading: Reading = field(metadata=INLINE)
    allowed: Magnitude
    ratio: Magnitude  # above 1 fails
    eps: float | None = None  # in machine epsilons of what the reference has in such a part
