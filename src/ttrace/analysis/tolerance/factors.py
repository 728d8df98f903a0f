"""How many times its noise a correct candidate may be off: one factor for every statistic.

A run judges about 1,000 tensors by 6 statistics. One false alarm in 1,000 clean runs leaves a
probability of 1.7e-7 for each, which a normal variable exceeds at 5.1 standard deviations. The
ratio q of a candidate's statistic to that of one perturbed run is close to log-normal for norms of
many elements; docs/explanation/tolerances.md derives each factor from the spread of log q, measured
on clean runs, and lists the largest q seen.
"""

from __future__ import annotations

from ttrace.core.readings import Statistic

# A correct candidate's norm error is at most 1.5 times that of one perturbed run (plain), 2.7 times
# in isolated fp32. exp(mean + 5.1 sd) of q is 1.5.
FACTOR = 3.0
# In an isolated run only the inputs of one module are noisy, but a reordered fp32 sum also rounds
# its partial sums: weight gradients of correct candidates reached 2.7 times the noise.
ISOLATED_FACTOR = 5.0

FACTORS = {
    Statistic.NORM: FACTOR,
    # Largest clean q 1.9 (plain) and 3.9 (isolated fp32); exp(mean + 5.1 sd) is 3.2.
    Statistic.ROW: 4.0,
    # Largest clean q 1.7 and 3.7; exp(mean + 5.1 sd) is 1.7 and less than for rows, which are
    # shorter; one factor for both is easier to remember.
    Statistic.SLICE: 4.0,
    # Largest clean q 2.6 and 6.5; exp(mean + 5.1 sd) is 3.9: the largest of many elements has a
    # Gumbel tail, which is heavier on the side of large q.
    Statistic.ELEMENT: 6.0,
    # Signed sums, whose one draw may be near zero: the unit is at least what tensors of the same
    # kind show (pooled). Largest clean q 6.8 and 8.2; 5.1 sd of a normal sum would be 5.1.
    Statistic.GAIN: 10.0,
    Statistic.SHIFT: 10.0,
}

# Chosen: below this share of the floor the noise is a few changed bits, and says nothing of rows.
MEASURED_SHARE = 1 / 8
# Chi of n degrees: one draw is below a fifth of its root mean square with a probability of about
# 5^-n, which is 1.5e-7 at 10; 16 leaves room for correlation.
TINY = 16
# Chosen: flips of close calls are counts; three times as many, and a few where there were few.
CHOICES_FACTOR, CHOICES_MORE = 3.0, 3.0


def widening(dtype: str, *, isolated: bool) -> float:
    """By what all factors are larger than in a plain comparison."""
    wide = dtype in ("float32", "float64")
    return ISOLATED_FACTOR / FACTOR if isolated and wide else 1.0
