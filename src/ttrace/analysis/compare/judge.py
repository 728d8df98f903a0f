"""Stage 4 of 7: compare. Every verdict is made here.

Enters: an alignment, what was measured of it, and its tolerance. Leaves: the verdict; every id gets
one. It must not know where tolerances come from.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from ttrace.analysis.compare.measure import Disagreement, Measured
from ttrace.core.alignment import Alignment, Pair
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.readings import Statistic, in_eps, readings
from ttrace.core.results import Judgement, TensorResult, Tolerance, Verdict
from ttrace.core.statistics import Statistics
from ttrace.trace.dtypes import eps_of

# Chosen: sums of fp32 in random order differ by a few eps; clean norms over ranks reached 5.
_RANDOM_ORDER_EPS = 16
_FP32_EPS = float(torch.finfo(torch.float32).eps)

# The run to blame for what is not there, unless its recording had faults: then nobody knows.
_LACKING = {
    Verdict.MISSING: "candidate",
    Verdict.INCOMPLETE: "candidate",
    Verdict.EXTRA: "reference",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Allowed:
    """What a verdict may count on: tolerances, tokens that may move, and faults by run."""

    tolerances: Mapping[TensorId, Tolerance]
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
    if pair is None or measured is None:
        return _judge_unmeasured(alignment, allowed.faults, order)
    result = _judge_measured(alignment.id, pair, measured, allowed.tolerances, order)
    return _with_moves(result, measured.moved, allowed.moves + excused)


def _judge_unmeasured(
    alignment: Alignment, faults: Mapping[str, Sequence[str]], order: int
) -> TensorResult:
    verdict, note = _why_unmeasured(alignment)
    lacking = _LACKING.get(verdict, "")
    if faults.get(lacking):
        verdict = Verdict.UNDECIDED
        note += f", but the {lacking} could not be recorded whole: {faults[lacking][0]}"
    side = alignment.candidate or alignment.reference
    return TensorResult(
        id=alignment.id,
        verdict=verdict,
        order=order,
        shape=() if side is None else side.shape,
        dtype="" if side is None or not side.pieces else side.dtype,
        note=note,
    )


def _why_unmeasured(alignment: Alignment) -> tuple[Verdict, str]:
    reference, candidate = alignment.reference, alignment.candidate
    if alignment.reference_problem:
        return Verdict.UNDECIDED, f"reference: {alignment.reference_problem}"
    if alignment.candidate_problem:
        return Verdict.SHAPE, alignment.candidate_problem
    if candidate is None:
        return Verdict.MISSING, "only in the reference"
    if reference is None:
        return Verdict.EXTRA, "only in the candidate"
    if reference.gaps:
        return Verdict.UNDECIDED, f"the reference itself lacks {reference.gaps[0]}"
    gaps = ", ".join(str(gap) for gap in candidate.gaps[:3])
    return Verdict.INCOMPLETE, f"no rank holds {gaps} of {list(reference.shape)}"


def _judge_measured(
    id_: TensorId,
    pair: Pair,
    measured: Measured,
    tolerances: Mapping[TensorId, Tolerance],
    order: int,
) -> TensorResult:
    reference, candidate = pair
    found, eps = measured.statistics, eps_of(candidate.dtype)
    tolerance = tolerances.get(id_)
    judgements = _judgements(found, tolerance, reference.shape, eps)
    verdict, note, ranks = _verdict(measured, candidate, tolerance, judgements)
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
        ranks=ranks,
        note=note,
    )


def _verdict(
    measured: Measured,
    candidate: LogicalTensor,
    tolerance: Tolerance | None,
    judgements: Sequence[Judgement],
) -> tuple[Verdict, str, tuple[int, ...]]:
    """The verdict, its note, and the ranks that disagree."""
    found = measured.statistics
    if found.nonfinite_reference:
        note = (
            f"the reference itself has {found.nonfinite_reference} NaN or Inf here; it must be "
            "finite"
        )
        return Verdict.UNDECIDED, note, ()
    if found.nonfinite_candidate:
        note = f"{found.nonfinite_candidate} NaN or Inf, the reference has none"
        return Verdict.NONFINITE, note, ()
    worst = max(measured.disagreements, key=lambda d: d.statistics.error_norm, default=None)
    if worst is not None and _is_conflict(worst, candidate, tolerance):
        ranks = tuple(sorted({r for d in measured.disagreements for r in d.piece.ranks}))
        return Verdict.CONFLICT, _conflict_note(worst, candidate), ranks
    if found.equal:
        return Verdict.PASS, "equal", ()
    if tolerance is None:
        note = (
            "differs, and no perturbed reference has it to tell how much rounding explains; "
            "pass --perturbed"
        )
        return Verdict.UNDECIDED, note, ()
    decisive = max(judgements, key=lambda judgement: judgement.ratio)
    if not decisive.ratio <= 1:
        return Verdict.MISMATCH, _mismatch_note(found, decisive, tolerance), ()
    return Verdict.PASS, "replicas differ by rounding" if worst is not None else "", ()


def _with_moves(result: TensorResult, moved: int, allowed: float) -> TensorResult:
    """The verdict with what tokens that a router sent elsewhere add to it (tokens.py)."""
    if not moved:
        return result
    tokens = f"{moved} token{'s' if moved > 1 else ''} routed elsewhere"
    if moved > allowed:
        ratio = max(result.ratio or 0.0, moved / allowed if allowed else math.inf)
        note = f"{tokens}, noise explains {allowed:g}"
        return replace(result, verdict=Verdict.MISMATCH, ratio=ratio, note=note)
    note = f"{result.note}; {tokens}" if result.note else tokens
    return replace(result, note=note)


def _is_conflict(
    worst: Disagreement, candidate: LogicalTensor, tolerance: Tolerance | None
) -> bool:
    """Replicas come from one collective or from the same arithmetic: only kernels that add in
    random order can make them differ, by rounding of the sum and of its last place.
    """
    eps, found = eps_of(candidate.dtype), worst.statistics
    replica = max(eps, _RANDOM_ORDER_EPS * _FP32_EPS) * found.reference_norm if eps else 0.0
    limit = replica if tolerance is None else min(replica, tolerance.error_norm)
    return found.error_norm > limit


def _conflict_note(worst: Disagreement, candidate: LogicalTensor) -> str:
    others = sorted(
        {
            rank
            for piece in candidate.pieces
            if piece.layout.overlaps(worst.piece.layout)
            for rank in piece.ranks
        }
    )
    what = "recomputation differs from the original on" if worst.piece.recompute else "replicas on"
    against = "" if worst.piece.recompute else f" and {_listed(others)} disagree"
    size = f"{worst.statistics.relative_error:.2g} relative"
    return f"{what} {_listed(worst.piece.ranks)}{against} by {size}"


def _listed(ranks: Sequence[int]) -> str:
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _judgements(
    found: Statistics, tolerance: Tolerance | None, shape: tuple[int, ...], eps: float
) -> tuple[Judgement, ...]:
    """One for every limit, the norm's first."""
    if tolerance is None:
        return ()
    limits = {(limit.statistic, limit.dims): limit.allowed for limit in tolerance.limits}
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


def _mismatch_note(found: Statistics, decisive: Judgement, tolerance: Tolerance) -> str:
    """What kind of error it is, and where."""
    residual = _residual(found)
    if found.gain != 0 and abs(found.gain - 1) > 0.01 and residual < 0.05 * found.relative_error:
        return f"a constant factor of {found.gain:.4g}"
    reading = decisive.reading
    if reading.statistic is Statistic.GAIN:
        is_all = residual * found.reference_norm <= tolerance.error_norm
        gain = f"{found.gain:.8g}"
        return f"a factor of {gain}" if is_all else f"on average {gain} of the reference"
    if reading.statistic is Statistic.SHIFT:
        return f"shifted by {found.error_sum / found.count:.3g}"
    if reading.statistic is Statistic.CHOICES:
        return f"{found.unequal} of {found.count} choices differ"
    return reading.place


def _residual(found: Statistics) -> float:
    """Relative error that is left when the candidate is divided by its gain."""
    if found.reference_norm == 0 or not math.isfinite(found.gain):
        return math.inf
    left = found.error_norm**2 - found.along_reference**2
    return math.sqrt(max(left, 0.0)) / found.reference_norm


def _ratio(value: float, allowed: float) -> float:
    if value == 0:
        return 0.0
    return value / allowed if allowed else math.inf
