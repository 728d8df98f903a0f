"""Limits finer than the norm: rows, slices, elements, gain and mean shift.

    limit = max(factor * max(unit, floor), one unit in the last place)

A gain or a mean shift is a signed sum, of which one draw can be near zero. For n independent errors
of norm d it would be about d / sqrt(n); errors that went through the same network are correlated,
so it is larger by a factor that tensors of one kind share (pooled over them).

One perturbed run cannot tell what all runs have in common from what is up to chance; several can.
Values that both runs round by chance are such a case: a gain between two noisy tensors is below 1,
by about the noise of the reference, in every run. What is common counts once and not as spread:

    limit = BIAS**2 * |mean of the draws| + factor * max(their deviation, floor)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from ttrace.analysis.tolerance.factors import BIAS, MEASURED_SHARE, TINY, Factors
from ttrace.analysis.tolerance.yardstick import Drawn, Key, Yardstick
from ttrace.core.ids import Kind, TensorId
from ttrace.core.statistics import Limit, Statistic, Statistics
from ttrace.trace.dtypes import eps_of

Family = tuple[int, Kind, str]
_SIGNED = (Statistic.GAIN, Statistic.SHIFT)
_NOT_FINER = (Statistic.NORM, Statistic.CHOICES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Correlation:
    """By what the signed sums of one kind of tensors exceed those of independent errors."""

    gain: float = 1.0
    shift: float = 1.0

    def of(self, statistic: Statistic) -> float:
        return self.gain if statistic is Statistic.GAIN else self.shift


@dataclass(frozen=True, slots=True, kw_only=True)
class SignedDraws:
    """A signed sum over all perturbed runs: what they have in common, and each without that.

    Of one run, or of a reference that is not deterministic, nothing is known to be in common.
    """

    common: float
    by_chance: tuple[float, ...]

    @classmethod
    def of(cls, yardstick: Yardstick, statistic: Statistic) -> SignedDraws:
        values = [_signed(run, statistic) for run in yardstick.noise]
        count = len(values)
        if count < 2 or yardstick.repeated:
            return cls(common=0.0, by_chance=tuple(values))
        mean, unbiased = sum(values) / count, math.sqrt(count / (count - 1))
        return cls(common=abs(mean), by_chance=tuple((v - mean) * unbiased for v in values))

    @property
    def deviation(self) -> float:
        return math.sqrt(sum(each**2 for each in self.by_chance) / len(self.by_chance))


def _signed(run: Statistics, statistic: Statistic) -> float:
    if statistic is Statistic.GAIN:
        return math.copysign(run.along_reference, run.gain - 1)
    return math.copysign(run.along_ones, run.error_sum)


def family(id_: TensorId) -> Family:
    """Tensors that are alike: of one step and kind, and for states and buffers of one name."""
    state = id_.slot.rpartition(".")[2] if id_.kind in (Kind.OPTIMIZER, Kind.BUFFER) else ""
    return id_.step, id_.kind, state


def correlations(yardsticks: Mapping[TensorId, Yardstick]) -> dict[Family, Correlation]:
    """The root mean square over each family; 1 where errors are independent."""
    squares: dict[Family, list[tuple[float, float]]] = {}
    for id_, yardstick in yardsticks.items():
        gain, shift = (SignedDraws.of(yardstick, statistic) for statistic in _SIGNED)
        for run, *sums in zip(yardstick.noise, gain.by_chance, shift.by_chance, strict=True):
            if yardstick.volume >= TINY and run.error_norm > 0:
                unit = run.error_norm / math.sqrt(yardstick.volume)
                pair = (sums[0] / unit) ** 2, (sums[1] / unit) ** 2
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
    readings: Mapping[Key, Drawn],
    *,
    norm_floor: float,
    factors: Factors,
    correlation: Correlation,
) -> tuple[Limit, ...]:
    """None where only the norm can be judged: too few elements, or too little noise was seen.

    A jump of one element may make up any of the readings.
    """
    noise, jump = yardstick.noise_norm, yardstick.jump.element
    unseen = noise < MEASURED_SHARE * norm_floor and not jump
    if yardstick.volume < TINY or noise == 0 or unseen:
        return ()
    limits = []
    for (statistic, dims), unit in readings.items():
        if statistic in _NOT_FINER or (yardstick.cells and dims and yardstick.parts(dims) == 1):
            continue  # a single part is the whole
        mean, common = max(unit.mean, jump), 0.0
        if statistic in _SIGNED:
            independent = noise / math.sqrt(yardstick.volume)
            draws = SignedDraws.of(yardstick, statistic)
            again = unit.largest if yardstick.repeated else 0.0
            mean = max(jump, draws.deviation, independent * correlation.of(statistic), again)
            common = BIAS**2 * draws.common
        allowed = max(
            common + factors.of(statistic, unit.draws) * mean,
            BIAS * unit.largest,
            last_place(yardstick, statistic, dims),
        )
        limits.append(Limit(statistic=statistic, dims=dims, allowed=allowed))
    return tuple(limits)


def last_place(yardstick: Yardstick, statistic: Statistic, dims: tuple[int, ...]) -> float:
    """What rounding in the last place does: a unit of the largest element, half of all of a part.

    Of a part of usual size: the noise of a larger one is larger, and was measured.
    """
    if statistic in _SIGNED:
        return 0.0
    unit = eps_of(yardstick.dtype)
    if statistic is Statistic.ELEMENT:
        usual = yardstick.reference_norm / math.sqrt(yardstick.parts(range(len(yardstick.shape))))
        return unit * (max(yardstick.peak, usual / 2) if yardstick.cells else yardstick.peak)
    parts = yardstick.parts(dims)
    usual = yardstick.reference_norm / math.sqrt(max(1, parts))
    return unit * max(yardstick.peak, usual / 2)


def part_norm(yardstick: Yardstick, dims: tuple[int, ...]) -> float:
    """A bound of the norm of the largest part that fixes these dims."""
    parts = yardstick.parts(dims)
    return min(yardstick.reference_norm, yardstick.peak * math.sqrt(yardstick.volume / parts))
