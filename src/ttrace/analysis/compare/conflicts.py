"""Conflicts: replicas of one tensor that are further from each other than rounding explains.

Enters: what was measured of replicas. Leaves: the one that disagrees most, whether it counts, and
which ranks hold it.
"""

from __future__ import annotations

from ttrace.analysis.compare.measured import Disagreement, Measured
from ttrace.core.finding import Specifics
from ttrace.core.judgement import Tolerance
from ttrace.core.logical import LogicalTensor
from ttrace.core.statistics import Statistics
from ttrace.trace.dtypes import eps_of

# Chosen: sums of fp32 in random order differ by a few eps; clean norms over ranks reached 5.
_RANDOM_ORDER_EPS = 16
_FP32_EPS = eps_of("float32")

_BESIDE_THE_POINT = 0.1  # chosen: of the error that all replicas share


def worst_of(measured: Measured) -> Disagreement | None:
    def size(one: Disagreement) -> tuple[bool, float]:
        return _has_other_infinities(one), one.statistics.error_norm

    return max(measured.disagreements, key=size, default=None)


def _has_other_infinities(one: Disagreement) -> bool:
    return bool(one.statistics.nonfinite_reference or one.statistics.nonfinite_candidate)


def disagreeing(measured: Measured) -> tuple[int, ...]:
    return tuple(sorted({rank for d in measured.disagreements for rank in d.ranks}))


def is_conflict(worst: Disagreement, candidate: LogicalTensor, tolerance: Tolerance | None) -> bool:
    """Replicas come from one collective or from the same arithmetic: only kernels that add in
    random order can make them differ, by rounding of the sum and of its last place.
    """
    eps, found = eps_of(candidate.dtype), worst.statistics
    replica = max(eps, _RANDOM_ORDER_EPS * _FP32_EPS) * found.reference_norm if eps else 0.0
    limit = replica if tolerance is None else min(replica, tolerance.error_norm)
    return _has_other_infinities(worst) or found.error_norm > limit


def is_beside_the_point(worst: Disagreement, found: Statistics) -> bool:
    """Whether all replicas are wrong by far more than they differ from each other."""
    if _has_other_infinities(worst):
        return False
    return worst.statistics.error_norm < _BESIDE_THE_POINT * found.error_norm


def conflict(measured: Measured, candidate: LogicalTensor) -> Specifics | None:
    """The replica that is furthest from what it repeats, and who holds that."""
    worst = worst_of(measured)
    if worst is None:
        return None
    others = {
        rank
        for piece in candidate.pieces
        if piece.layout.overlaps(worst.layout)
        for rank in piece.ranks
    }
    return Specifics(
        ranks=worst.ranks,
        other_ranks=tuple(sorted(others)),
        relative_error=worst.statistics.relative_error,
    )
