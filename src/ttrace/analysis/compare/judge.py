"""Stage 4 of 7: compare. Every verdict is made here.

Enters: an alignment, what was measured of it, and its tolerance. Leaves: the verdict; every id gets
one. It must not know where tolerances come from. Conflicts are replicas of one tensor that are
further from each other than rounding explains.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from ttrace.analysis.compare.measured import Disagreement, Measured
from ttrace.core.finding import Finding, Specifics
from ttrace.core.formats import MOST_ROUNDINGS, Precision
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import Alignment, LogicalTensor, Pair
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.statistics import (
    Judgement,
    Reading,
    Statistic,
    Statistics,
    Tolerance,
    in_eps,
    readings,
)
from ttrace.trace.dtypes import eps_of

# The run to blame for what is not there, unless its recording had faults: then nobody knows.
_LACKING = {
    Verdict.MISSING: "candidate",
    Verdict.INCOMPLETE: "candidate",
    Verdict.EXTRA: "reference",
}
_KINDS_OF_ERROR = {
    Statistic.NORM: Finding.NORM,
    Statistic.SHIFT: Finding.SHIFT,
    Statistic.CHOICES: Finding.CHOICES,
}
_OF_ALL = frozenset({Statistic.GAIN, Statistic.SHIFT, Statistic.CHOICES})  # whatever cells are
_BESIDE_A_FACTOR = 0.05  # chosen: of the error, where nearly all of it is a factor
_SHOWN_GAPS = 3  # chosen: the first say where to look


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a verdict may count on: tolerances, tokens that may move, and faults by run.

    `precisions` are those that are not as they should be, where nothing else is wrong (grain.py).
    """

    tolerances: Mapping[TensorId, Tolerance]
    precisions: Mapping[TensorId, Precision] = field(default_factory=dict)  # that are wrong
    moves: float = 0.0  # tokens of one expert that noise may send elsewhere
    faults: Mapping[str, Sequence[str]] = field(default_factory=dict)


def judge(
    alignment: Alignment,
    measured: Measured | None,
    allowed: Allowed,
    *,
    order: int,
    excused: int = 0,
) -> TensorResult:
    """The verdict on one id. `excused` tokens had moved before they came here."""
    pair = alignment.pair
    if pair is None or measured is None or not measured.cells_fit:
        return _judge_unmeasured(alignment, allowed.faults, order)
    precision = allowed.precisions.get(alignment.id)
    tolerance = allowed.tolerances.get(alignment.id)
    result = _judge_measured(alignment.id, pair, measured, tolerance, precision, order)
    return _with_moves(result, measured.moved, allowed.moves + excused)


def _judge_unmeasured(
    alignment: Alignment, faults: Mapping[str, Sequence[str]], order: int
) -> TensorResult:
    verdict, finding, specifics = _why_unmeasured(alignment)
    lacking = faults.get(_LACKING.get(verdict, ""))
    if lacking:
        verdict = Verdict.UNDECIDED
        specifics = replace(specifics or Specifics(), fault=lacking[0])
    side = alignment.candidate or alignment.reference
    return TensorResult(
        id=alignment.id,
        verdict=verdict,
        order=order,
        shape=() if side is None else side.shape,
        dtype="" if side is None or not side.pieces else side.dtype,
        finding=finding,
        specifics=specifics,
    )


def _why_unmeasured(alignment: Alignment) -> tuple[Verdict, Finding, Specifics | None]:
    reference, candidate = alignment.reference, alignment.candidate
    if alignment.names_rows:
        return Verdict.PASS, Finding.SAME_ROWS, None
    if alignment.reference_problem:
        problem = Specifics(problem=alignment.reference_problem)
        return Verdict.UNDECIDED, Finding.REFERENCE_CANNOT_BE_ALIGNED, problem
    if alignment.candidate_problem:
        problem = Specifics(problem=alignment.candidate_problem)
        if alignment.uncertain:
            return Verdict.UNDECIDED, Finding.NO_PLACE_KNOWN, problem
        return Verdict.SHAPE, Finding.CANNOT_BE_ALIGNED, problem
    if candidate is None:
        return Verdict.MISSING, Finding.ONLY_IN_REFERENCE, None
    if reference is None:
        return Verdict.EXTRA, Finding.ONLY_IN_CANDIDATE, None
    if alignment.pair is not None:
        return Verdict.UNDECIDED, Finding.CELLS_DO_NOT_FIT, None
    if reference.gaps:
        gaps = Specifics(gaps=(str(reference.gaps[0]),))
        return Verdict.UNDECIDED, Finding.REFERENCE_LACKS, gaps
    gaps = Specifics(gaps=tuple(map(str, candidate.gaps[:_SHOWN_GAPS])))
    return Verdict.INCOMPLETE, Finding.NO_RANK_HOLDS, gaps


def _judge_measured(
    id_: TensorId,
    pair: Pair,
    measured: Measured,
    tolerance: Tolerance | None,
    precision: Precision | None,
    order: int,
) -> TensorResult:
    # Error norm 2e-3 where 1e-3 is allowed: MISMATCH, ratio 2. The same, and bfloat16 in place of
    # float32 explains all of it: ratio infinite, LOWER_PRECISION. Error norm 5e-4 and the same bits
    # are lost: that, too, as its grain is a judgement of its own.
    reference, candidate = pair
    found, eps = measured.statistics, eps_of(candidate.dtype)
    judgements = _judgements(found, tolerance, reference.shape, eps)
    if precision is not None and not _explains(precision, found, judgements):
        precision = None
    if precision is not None:
        judgements = (*judgements, _of_grain(precision))
    verdict, finding = _verdict(measured, candidate, tolerance, judgements)
    if precision is not None and verdict is Verdict.MISMATCH:
        finding = _of_precision(precision)
    if verdict is Verdict.MISMATCH and id_.kind is Kind.PARAM and candidate.notes:
        finding = Finding.TAKEN_AS_CHUNKS
    in_conflict = verdict is Verdict.CONFLICT
    return TensorResult(
        id=id_,
        verdict=verdict,
        order=order,
        shape=reference.shape,
        dtype=candidate.dtype,
        statistics=found,
        tolerance=tolerance,
        judgements=judgements,
        ratio=max((judgement.ratio for judgement in judgements), default=None),
        error_eps=found.relative_error / eps if eps else None,
        ranks=disagreeing(measured) if in_conflict else (),
        finding=finding,
        specifics=conflict(measured, candidate) if in_conflict else _dtypes(precision),
    )


def _explains(precision: Precision, found: Statistics, judgements: Sequence[Judgement]) -> bool:
    """Whether rounding to the coarser format is all that is wrong; nothing without a tolerance."""
    others_pass = all(judgement.ratio <= 1 for judgement in judgements)
    is_rounding = found.relative_error <= MOST_ROUNDINGS * precision.coarser.eps
    return bool(judgements) and (others_pass or is_rounding)


def _of_precision(precision: Precision) -> Finding:
    if precision.is_of_own_terms:
        return Finding.COARSER_THAN_TERMS
    return Finding.LOWER_PRECISION if precision.is_lower else Finding.NOT_QUANTISED


def _of_grain(precision: Precision) -> Judgement:
    reading = Reading(statistic=Statistic.GRAIN, value=float(precision.apart))
    return Judgement(reading=reading, allowed=0.0, ratio=math.inf)


def _dtypes(precision: Precision | None) -> Specifics | None:
    if precision is None:
        return None
    return Specifics(dtype=precision.candidate.name, reference_dtype=precision.reference.name)


def _verdict(
    measured: Measured,
    candidate: LogicalTensor,
    tolerance: Tolerance | None,
    judgements: Sequence[Judgement],
) -> tuple[Verdict, Finding | None]:
    # Error 3 where 1 is allowed, and a replica that is off by
    #     0.1    MISMATCH: all replicas are wrong, by far more than they differ
    #     2.0    CONFLICT, though all are wrong as well
    # Error 0.5, and a replica that is off by
    #     1e-9   PASS, and the finding says that replicas were rounded
    #     2.0    CONFLICT
    found, worst = measured.statistics, worst_of(measured)
    if found.nonfinite_reference or found.nonfinite_candidate:
        return _verdict_on_infinities(found, tolerance)
    decisive = max(judgements, key=lambda judgement: judgement.ratio, default=None)
    is_wrong = decisive is not None and not decisive.ratio <= 1
    disagrees = worst is not None and is_conflict(worst, candidate, tolerance)
    if worst is not None and disagrees and not (is_wrong and is_beside_the_point(worst, found)):
        is_own = worst.recompute
        finding = Finding.RECOMPUTATION_DIFFERS if is_own else Finding.REPLICAS_DISAGREE
        return Verdict.CONFLICT, finding
    if found.equal:
        return Verdict.PASS, Finding.EQUAL
    if tolerance is None:
        return Verdict.UNDECIDED, Finding.NO_YARDSTICK
    assert decisive is not None  # a tolerance has at least the norm's limit
    if is_wrong:
        return Verdict.MISMATCH, _kind_of_error(found, decisive.reading.statistic, tolerance)
    return Verdict.PASS, None if worst is None else Finding.REPLICAS_ROUNDED


def _verdict_on_infinities(
    found: Statistics, tolerance: Tolerance | None
) -> tuple[Verdict, Finding]:
    if not found.nonfinite_reference:
        return Verdict.NONFINITE, Finding.NONFINITE
    # Infinities that a perturbed reference has at the same places are there on purpose.
    if tolerance is None:
        return Verdict.UNDECIDED, Finding.REFERENCE_NONFINITE
    return Verdict.NONFINITE, Finding.OTHER_INFINITIES


def _with_moves(result: TensorResult, moved: int, allowed: float) -> TensorResult:
    """The verdict with what tokens that a router sent elsewhere add to it (tokens.py)."""
    if not moved:
        return result
    specifics = replace(result.specifics or Specifics(), moved=moved, allowed_moves=allowed)
    if moved <= allowed:
        return replace(result, specifics=specifics)
    return replace(
        result,
        verdict=Verdict.MISMATCH,
        ratio=max(result.ratio or 0.0, moved / allowed if allowed else math.inf),
        finding=Finding.TOKENS_MOVED,
        specifics=specifics,
    )


def _judgements(
    found: Statistics, tolerance: Tolerance | None, shape: tuple[int, ...], eps: float
) -> tuple[Judgement, ...]:
    """One for every limit, the norm's first."""
    if tolerance is None:
        return ()
    limits = {
        (limit.statistic, limit.dims): limit.allowed
        for limit in tolerance.limits
        if found.cells == tolerance.cells or limit.statistic in _OF_ALL
    }
    limits[Statistic.NORM, ()] = tolerance.error_norm
    return tuple(
        Judgement(
            reading=reading,
            allowed=limits[reading.key],
            ratio=_ratio(reading.value, limits[reading.key]),
            eps=in_eps(reading, found, shape, eps),
        )
        for reading in readings(found)
        if reading.key in limits
    )


def _kind_of_error(found: Statistics, decisive: Statistic, tolerance: Tolerance) -> Finding:
    residual = found.residual
    if found.gain != 0 and residual < _BESIDE_A_FACTOR * found.relative_error:
        return Finding.CONSTANT_FACTOR if abs(found.gain - 1) > 0.01 else Finding.FACTOR
    if decisive is Statistic.GAIN:
        is_all = residual * found.reference_norm <= tolerance.error_norm
        return Finding.FACTOR if is_all else Finding.AVERAGE_FACTOR
    return _KINDS_OF_ERROR.get(decisive, Finding.PLACE)


def _ratio(value: float, allowed: float) -> float:
    if value == 0:
        return 0.0
    return value / allowed if allowed else math.inf


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
