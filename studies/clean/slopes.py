"""Does the ratio grow with a size? The slope of its logarithm, by least squares.

Enters: checks of a sweep. Leaves: slopes with their standard errors. 0 means that a tolerance grows
as the error does; 0.5, that sixteen times the rows bring a correct run four times nearer to an
alarm. Several series have a level each and one slope.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from studies.clean.check import Check
from zoo.clean.case import Case

SIZES: Mapping[str, Callable[[Case], int]] = {
    "rows": lambda case: case.rows,
    "width": lambda case: case.width,
    "depth": lambda case: case.depth,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """The largest ratio of a check at one size, in one series."""

    series: str
    size: float
    ratio: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Slope:
    value: float
    error: float  # standard error
    points: int

    def __str__(self) -> str:
        return f"{self.value:+.2f} ± {self.error:.2f}"


def points_of(checks: Iterable[Check], sweep: str) -> list[Point]:
    """A ratio of zero, where nothing differs at all, has no logarithm and is left out."""
    size = SIZES[sweep]
    return [
        Point(series=case.architecture, size=size(case), ratio=check.largest)
        for check in checks
        for case in [check.case]
        if case.group == sweep and 0 < check.largest < math.inf
    ]


def slope_of(points: Sequence[Point]) -> Slope | None:
    """None where no series has two sizes, or there are too few points to tell an error."""
    logs = [(p.series, math.log(p.size), math.log(p.ratio)) for p in points]
    x_mean, y_mean = (
        _means([(series, values[axis]) for series, *values in logs]) for axis in (0, 1)
    )
    centred = [(x - x_mean[series], y - y_mean[series]) for series, x, y in logs]
    spread = sum(x * x for x, _ in centred)
    freedom = len(points) - len(x_mean) - 1
    if spread < 1e-12 or freedom < 1:  # 1e-12: rounding of equal sizes
        return None
    value = sum(x * y for x, y in centred) / spread
    left = sum((y - value * x) ** 2 for x, y in centred)
    return Slope(value=value, error=math.sqrt(left / freedom / spread), points=len(points))


def _means(values: Sequence[tuple[str, float]]) -> dict[str, float]:
    sums: dict[str, list[float]] = {}
    for series, value in values:
        sums.setdefault(series, []).append(value)
    return {series: sum(found) / len(found) for series, found in sums.items()}
