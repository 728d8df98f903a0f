"""Replicas that are further from each other than rounding explains.

error 3 where 1 is allowed, and a replica that is off by
    0.1    all replicas are wrong, by far more than they differ: not a matter of replicas
    2.0    CONFLICT, though all are wrong as well
error 0.5, and a replica that is off by
    1e-9   PASS, and the finding says that replicas were rounded
    2.0    CONFLICT
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from ttrace.analysis.compare import Measured
from ttrace.analysis.compare.measured import Disagreement
from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rules.precision import has_lost_bits
from ttrace.analysis.judge.rulings import Accusation, Exhibit, Weight
from ttrace.core.finding import Finding, Specifics
from ttrace.core.logical import LogicalTensor
from ttrace.core.results import Verdict
from ttrace.core.statistics import Statistics, Tolerance
from ttrace.trace.dtypes import eps_of

# Chosen: sums of fp32 in random order differ by a few eps; clean norms over ranks reached 5.
_RANDOM_ORDER_EPS = 16
_FP32_EPS = eps_of("float32")
_BESIDE_THE_POINT = 0.1  # chosen: of the error that all replicas share


class Replicas(Rule):
    """They come from one collective or from the same arithmetic, and should be equal."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        for id_, exhibit in case.exhibits.items():
            measured, candidate = exhibit.measured, exhibit.alignment.candidate
            worst = None if measured is None else worst_of(measured)
            if measured is None or candidate is None or worst is None:
                continue
            is_wrong = exhibit.is_wrong or has_lost_bits(case, exhibit)
            is_beside = is_wrong and is_beside_the_point(worst, measured.statistics)
            if is_conflict(worst, candidate, exhibit.tolerance) and not is_beside:
                own = worst.recompute
                yield Accusation(
                    id=id_,
                    verdict=Verdict.CONFLICT,
                    weight=Weight.REPLICAS,
                    finding=Finding.RECOMPUTATION_DIFFERS if own else Finding.REPLICAS_DISAGREE,
                    specifics=_conflict(worst, candidate),
                    ranks=disagreeing(measured),
                )
            elif _passes(exhibit):
                yield Accusation(
                    id=id_,
                    verdict=Verdict.PASS,
                    weight=Weight.ROUNDED,
                    finding=Finding.REPLICAS_ROUNDED,
                )


def _passes(exhibit: Exhibit) -> bool:
    found = exhibit.statistics
    return exhibit.tolerance is not None and found is not None and not found.equal


def worst_of(measured: Measured) -> Disagreement | None:
    def size(one: Disagreement) -> tuple[bool, float]:
        return _has_other_infinities(one), one.statistics.error_norm

    return max(measured.disagreements, key=size, default=None)


def _has_other_infinities(one: Disagreement) -> bool:
    return bool(one.statistics.nonfinite_reference or one.statistics.nonfinite_candidate)


def disagreeing(measured: Measured) -> tuple[int, ...]:
    return tuple(sorted({rank for d in measured.disagreements for rank in d.ranks}))


def is_conflict(worst: Disagreement, candidate: LogicalTensor, tolerance: Tolerance | None) -> bool:
    """Only kernels that add in random order can make replicas differ: by rounding of the sum and
    of its last place.
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


def _conflict(worst: Disagreement, candidate: LogicalTensor) -> Specifics:
    """The replica that is furthest from what it repeats, and who holds that."""
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
