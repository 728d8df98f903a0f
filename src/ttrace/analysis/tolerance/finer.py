"""Limits finer than the norm: rows, slices, elements, gain and mean shift.

    limit = factor * max(the same reading of the perturbed runs, floor)

A gain or a mean shift is a signed sum, of which one draw can be near zero. For n independent errors
of norm d it would be about d / sqrt(n); errors that went through the same network are correlated,
so it is larger by a factor that tensors of one kind share (pooled over them).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ttrace.analysis.tolerance.factors import FACTORS, MEASURED_SHARE, TINY
from ttrace.analysis.tolerance.yardstick import Yardstick
from ttrace.core.ids import Kind, TensorId
from ttrace.core.readings import Statistic, readings
from ttrace.core.results import Limit

Key = tuple[Statistic, tuple[int, ...]]
_SIGNED = (Statistic.GAIN, Statistic.SHIFT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """By what the signed sums of one kind of tensors exceed those of independent errors."""

    gain: float = 1.0
    shift: float = 1.0

    def of(self, statistic: Statistic) -> float:
        return self.gain if statistic is Statistic.GAIN else self.shift


def family(id_: TensorId) -> tuple[int, Kind, str]:
    """Tensors that are alike: of one step and kind, and for states of one name."""
    state = id_.slot.rpartition(".")[2] if id_.kind is Kind.OPTIMIZER else ""
    return id_.step, id_.kind, state


def correlations(
    yardsticks: Mapping[TensorId, Yardstick],
) -> dict[tuple[int, Kind, str], Correlation]:
    """The root mean square over each family; 1 where errors are independent."""
    squares: dict[tuple[int, Kind, str], list[tuple[float, float]]] = {}
    for id_, yardstick in yardsticks.items():
        for run in yardstick.noise:
            if yardstick.volume >= TINY and run.error_norm > 0:
                unit = run.error_norm / math.sqrt(yardstick.volume)
                pair = (run.along_reference / unit) ** 2, (run.along_ones / unit) ** 2
                squares.setdefault(family(id_), []).append(pair)
    return {
        key: Correlation(
            gain=max(1.0, math.sqrt(sum(gain for gain, _ in found) / len(found))),
            shift=max(1.0, math.sqrt(sum(shift for _, shift in found) / len(found))),
        )
        for key, found in squares.items()
    }


def finer_limits(
    yardstick: Yardstick,
    *,
    norm_floor: float,
    widening: float,
    correlation: Correlation,
) -> tuple[Limit, ...]:
    """None where only the norm can be judged: too few elements, or too little noise was seen.

    `widening` multiplies every factor. A jump of one element (core.unstable) may make up any of
    the readings.
    """
    noise = yardstick.noise_norm
    unseen = noise < MEASURED_SHARE * norm_floor and not yardstick.jump
    if yardstick.volume < TINY or noise == 0 or unseen:
        return ()
    largest: dict[Key, float] = {}
    for run in yardstick.noise:
        for reading in readings(run):
            largest[reading.key] = max(largest.get(reading.key, 0.0), reading.value)
    limits = []
    for (statistic, dims), value in largest.items():
        if statistic in (Statistic.NORM, Statistic.CHOICES):
            continue
        floor = yardstick.jump
        if statistic in _SIGNED:
            independent = noise / math.sqrt(yardstick.volume)
            floor = max(floor, independent * correlation.of(statistic))
        factor = FACTORS[statistic] * widening
        limits.append(Limit(statistic=statistic, dims=dims, allowed=factor * max(value, floor)))
    return tuple(limits)
