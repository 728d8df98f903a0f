"""Stage 4 of 7: compare.

Enters: alignments and tolerances. Leaves: a verdict for every id; nothing is skipped silently.
Candidate pieces are walked against slices of the reference block by block, replicas against the
piece they repeat, partial sums added on the way. It must not know where tolerances come from.
"""

from __future__ import annotations

import math
import statistics as stdlib_statistics
from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.readings import Statistic, in_eps, readings
from ttrace.core.results import Judgement, TensorResult, Tolerance, Verdict
from ttrace.core.scale import MARGIN, Scales, explained_scales
from ttrace.core.statistics import Statistics
from ttrace.measure.accumulator import Accumulator
from ttrace.trace.blocks import BlockReader, blocks
from ttrace.trace.dtypes import torch_dtype
from ttrace.trace.spans import SpanReader

Pair = tuple[LogicalTensor, LogicalTensor]


# Chosen: sums of fp32 in random order differ by a few eps; clean norms over ranks reached 5.
_RANDOM_ORDER_EPS = 16
_FP32_EPS = float(torch.finfo(torch.float32).eps)


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A replica that is not bitwise what another rank holds."""

    piece: Piece
    statistics: Statistics


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One pair of logical tensors, measured in one pass.

    `moved` tokens went to this expert in one of the runs only; the statistics are of the others.
    """

    statistics: Statistics
    disagreements: tuple[Disagreement, ...] = ()
    moved: int = 0


class Comparator:
    """Measures pairs of logical tensors; its memory does not depend on their size."""

    def __init__(self, reference: SpanReader, candidate: SpanReader) -> None:
        self._reference = BlockReader(reference)
        self._candidate = BlockReader(candidate)
        self._replica = BlockReader(candidate)

    def measure(
        self, reference: LogicalTensor, candidate: LogicalTensor, scale: float = 1.0
    ) -> Measured:
        """Statistics of candidate / scale against the reference, and replicas that disagree."""
        whole = Accumulator(shape=reference.shape)
        spreads = [(piece, Accumulator()) for piece in candidate.replicas]
        routed = _token_dims(reference)
        moved = 0
        for start, stop in blocks(reference.shape):
            expected = self._reference.read(reference.pieces, reference.shape, start, stop)
            found = self._candidate.read(candidate.pieces, candidate.shape, start, stop)
            for piece, spread in spreads:
                held = self._replica.read_piece(piece, candidate.shape, start, stop)
                for place, values in held:
                    spread.update(found[place], values)
            moved += _leave_out_moved(expected, found, routed) if routed else 0
            whole.update(expected, _divided(found, scale), start)
        self._reference.finish(reference)
        self._candidate.finish(candidate)
        disagreements = [(piece, spread.result()) for piece, spread in spreads]
        return Measured(
            statistics=whole.result(),
            moved=moved,
            disagreements=tuple(
                Disagreement(piece=piece, statistics=result)
                for piece, result in disagreements
                if not result.equal
            ),
        )

    def gain(self, reference: LogicalTensor, piece: Piece) -> float:
        """<piece, reference> / <reference, reference> over the part that the piece holds."""
        total = Accumulator()
        for start, stop in blocks(reference.shape):
            held = self._replica.read_piece(piece, reference.shape, start, stop)
            expected: torch.Tensor | None = None
            for place, values in held:
                if expected is None:
                    expected = self._reference.read(reference.pieces, reference.shape, start, stop)
                total.update(expected[place], values)
        return total.result().gain


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """By what the candidate's activation gradients are larger than the reference's, and why.

    `scales` are those that a correct candidate may have.
    """

    factor: float = 1.0
    scales: Scales = field(default_factory=Scales)
    note: str = ""


def find_loss_scale(
    comparator: Comparator,
    pairs: Sequence[tuple[TensorId, Pair]],
    *,
    reference_splits: Sequence[int],
    candidate_splits: Sequence[int],
    declared: float | None = None,
) -> LossScale:
    """Measure the scale of the loss on the first activation gradient of the backward pass.

    It is removed only when splitting the batch explains it, or when it is the one that the
    framework declares; main gradients are compared as they are, so that a wrong scale shows there.
    """
    gains = _seed_gains(comparator, pairs)
    if declared is not None:
        scales = Scales(allowed=(declared,), likely=declared)
        return LossScale(factor=declared, scales=scales, note=_scale_note(declared, gains))
    scales = Scales(allowed=explained_scales(reference_splits, candidate_splits))
    if not gains:
        return LossScale(scales=scales)
    middle = stdlib_statistics.median(gains)
    nearest = scales.nearest(middle)
    if sorted(reference_splits) == sorted(candidate_splits):
        # Nothing explains another scale, unless it is made up for later, as in pipelines.
        either = Scales(allowed=(1.0, nearest))
        if either.nearest(_main_gain(comparator, pairs)) != 1.0:
            scales = Scales()
    factor = scales.of(middle)
    scales = replace(scales, likely=scales.nearest(middle))
    return LossScale(factor=factor, scales=scales, note=_scale_note(factor, gains))


def find_isolated_scale(
    comparator: Comparator, pairs: Sequence[tuple[TensorId, Pair]], scales: Scales
) -> LossScale:
    """The scale that an isolated run took for every gradient after the first."""
    gains = _seed_gains(comparator, pairs)
    if not gains:
        return LossScale(scales=scales)
    factor = scales.of(stdlib_statistics.median(gains))
    return LossScale(factor=factor, scales=scales, note=_scale_note(factor, gains))


def _seed_gains(comparator: Comparator, pairs: Sequence[tuple[TensorId, Pair]]) -> list[float]:
    """How large the first gradient of backward is on every rank, against the reference's."""
    seeds = (
        pair
        for id_, pair in pairs
        if id_.kind.is_gradient_of_activation and pair[0].volume > 1 and not pair[1].gaps
    )
    seed = min(seeds, key=lambda pair: pair[0].sequence, default=None)
    if seed is None:
        return []
    gains = [comparator.gain(seed[0], piece) for piece in seed[1].pieces]
    return [gain for gain in gains if math.isfinite(gain) and gain != 0]


def _main_gain(comparator: Comparator, pairs: Sequence[tuple[TensorId, Pair]]) -> float:
    gains = [
        comparator.gain(reference, candidate.pieces[0])
        for id_, (reference, candidate) in pairs
        if id_.kind is Kind.MAIN_GRAD
    ]
    gains = [gain for gain in gains if math.isfinite(gain) and gain != 0]
    return stdlib_statistics.median(gains) if gains else 1.0


def _scale_note(factor: float, gains: Sequence[float]) -> str:
    if not gains:
        return ""
    middle = stdlib_statistics.median(gains)
    if max(gains) - min(gains) > MARGIN * abs(middle):
        return (
            "the loss weighs microbatches differently from the reference: its gradient is "
            + ", ".join(f"{gain:.4g}" for gain in gains[:8])
            + " times the reference's; a mean of means over unequal counts is a different loss"
        )
    if factor == 1.0:
        return ""
    return (
        f"activation gradients are {factor:g} times the reference's, as a loss averaged over a "
        "part of the batch makes them; they are compared after dividing by it"
    )


def _token_dims(tensor: LogicalTensor) -> int:
    """The leading dims that say which token it is, where a router sent tokens to experts.

    Zeros stand for all other tokens. They are expert, position and sample, or the last two.
    """
    records = [record for piece in tensor.pieces for record in piece.records]
    routed = next((record for record in records if record.origin is not None), None)
    return 0 if routed is None or routed.batch_dim is None else routed.batch_dim + 1


def _leave_out_moved(expected: torch.Tensor, found: torch.Tensor, token_dims: int) -> int:
    """Clear tokens that only one of the two has."""
    inner = tuple(range(token_dims, expected.ndim))
    ours, theirs = (
        (values != 0).any(dim=inner, keepdim=True) if inner else values != 0
        for values in (expected, found)
    )
    moved = ours != theirs
    for values in (expected, found):
        values.masked_fill_(moved, 0)
    return int(moved.sum())


def judge(
    id_: TensorId, pair: Pair, measured: Measured, tolerance: Tolerance | None, order: int
) -> TensorResult:
    """The verdict on a pair that could be measured."""
    reference, candidate = pair
    found = measured.statistics
    eps = _eps(candidate.dtype)
    judgements = _judgements(found, tolerance, reference.shape, eps)

    def result(verdict: Verdict, note: str = "", ranks: tuple[int, ...] = ()) -> TensorResult:
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

    if found.nonfinite_reference:
        return result(
            Verdict.UNDECIDED,
            f"the reference itself has {found.nonfinite_reference} NaN or Inf here; it must be "
            f"finite",
        )
    if found.nonfinite_candidate:
        return result(
            Verdict.NONFINITE, f"{found.nonfinite_candidate} NaN or Inf, the reference has none"
        )
    worst = max(measured.disagreements, key=lambda d: d.statistics.error_norm, default=None)
    if worst is not None and worst.statistics.error_norm > _replica_tolerance(
        worst.statistics, eps, tolerance
    ):
        ranks = tuple(sorted({r for d in measured.disagreements for r in d.piece.ranks}))
        return result(Verdict.CONFLICT, _conflict_note(worst, candidate), ranks)
    if found.equal:
        return result(Verdict.PASS, "equal")
    if tolerance is None:
        return result(
            Verdict.UNDECIDED,
            "differs, and no perturbed reference has it to tell how much rounding explains; "
            "pass --perturbed",
        )
    decisive = max(judgements, key=lambda judgement: judgement.ratio)
    if not decisive.ratio <= 1:
        return result(Verdict.MISMATCH, _mismatch_note(found, decisive, tolerance))
    note = "replicas differ by rounding" if worst is not None else ""
    return result(Verdict.PASS, note)


def _divided(block: torch.Tensor, scale: float) -> torch.Tensor:
    if scale == 1.0:
        return block
    exact = math.frexp(scale)[0] == 0.5  # a power of two: no rounding in any dtype
    return block.div_(scale) if exact and block.is_floating_point() else block.float() / scale


def _replica_tolerance(found: Statistics, eps: float, tolerance: Tolerance | None) -> float:
    """Replicas come from one collective or from the same arithmetic: only kernels that add in
    random order can make them differ, by rounding of the sum and of its last place.
    """
    replica = max(eps, _RANDOM_ORDER_EPS * _FP32_EPS) * found.reference_norm if eps else 0.0
    return replica if tolerance is None else min(replica, tolerance.error_norm)


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


def _eps(dtype_name: str) -> float:
    dtype = torch_dtype(dtype_name)
    return float(torch.finfo(dtype).eps) if dtype.is_floating_point else 0.0
