"""How many times its noise a correct candidate may be off: from a rate of false alarms per run.

    limit = factor * unit          unit: the geometric mean of the perturbed runs' readings
    factor = BIAS * exp(z * spread * sqrt(1 + 1 / draws))       norms and maxima
    factor = BIAS * z                                           signed sums

A run judges thousands of statistics. One false alarm in 1,000 clean runs leaves each of them a
probability of ALARM_RATE / judged, which a normal variable exceeds at z standard deviations. The
logarithm of a norm or of a maximum of many elements is close to normal, with the same spread in the
perturbed runs and in the candidate; the unit is known from `draws` of them. Signed sums are normal
themselves. docs/explanation/tolerances.md has the measurements.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from statistics import NormalDist

from ttrace.core.statistics import Statistic

# False alarms per clean run, at most.
ALARM_RATE = 1e-3
# Chosen: what a run of a small model judges; of fewer, no less is allowed.
_FEWEST_JUDGED = 6000
# How much more another correct layout may round than the perturbed run does, and tensors differ in
# their spread. Chosen: with it no held-out reading and no correct candidate comes beyond 0.61 of
# its factor (studies.power.draws).
BIAS = 2.0
# Standard deviations of log(reading) from one perturbed run to the next. studies.power.draws
# pools 0.04 and 0.05 (fp32, bf16) for norms, 0.11 for rows, 0.07 for slices, 0.15 for elements.
_SPREAD = {
    Statistic.NORM: 0.0562,
    Statistic.ROW: 0.0961,
    Statistic.SLICE: 0.0961,
    Statistic.ELEMENT: 0.1524,
}

# Chosen: below this share of the floor the noise is a few changed bits, and says nothing of rows.
MEASURED_SHARE = 1 / 8
# Chi of n degrees: one draw is below a fifth of its root mean square with a probability of about
# 5^-n, which is 1.5e-7 at 10; 16 leaves room for correlation.
TINY = 16
# The largest of 16 normal errors has about a fifth of their square: beyond that, fewer carry it.
CARRIED_BY_FEW = 1 / 5
# Chosen: flips of close calls are counts; three times as many, and a few where there were few.
CHOICES_FACTOR, CHOICES_MORE = 3.0, 3.0


@dataclass(frozen=True)
class Factors:
    """The factors of a run that judges so many statistics."""

    judged: int

    def of(self, statistic: Statistic, draws: int = 1) -> float:
        """About 3 for norms, 4 for rows and slices, 6 for elements, 10 for signed sums."""
        spread = _SPREAD.get(statistic)
        if spread is None:
            return BIAS * self._deviations
        return BIAS * math.exp(self._deviations * spread * math.sqrt(1 + 1 / draws))

    @cached_property
    def _deviations(self) -> float:
        rate = ALARM_RATE / max(self.judged, _FEWEST_JUDGED)
        return NormalDist().inv_cdf(1 - rate)
