"""Badges: the kind of mistake in a few words, with the axis of the mesh where it has one.

    missing all-reduce over tp
    lr differs
    no known pattern fits

Enters: a culprit and its evidence. Leaves: words, and whether they name a kind.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttrace.core.blame import Culprit, Diagnosis, Expected, Mistake, Reason, Stage
from ttrace.core.finding import Finding, Specifics, Topic
from ttrace.core.mesh import Mesh
from ttrace.core.results import TensorResult

UNKNOWN = "no known pattern fits"

MISTAKE_BADGES = {
    Mistake.ALL_ZERO: "all zero",
    Mistake.NOT_UPDATED: "not updated",
    Mistake.MISSING_ALL_REDUCE: "missing all-reduce{over}",
    Mistake.MISSING_AVERAGE: "missing average{over}",
    Mistake.PARTS_EXCHANGED: "parts exchanged",
    Mistake.PARTS_IN_OTHER_ORDER: "parts in another order",
    Mistake.TRANSPOSED: "transposed",
    Mistake.ONE_PLACE_LATER: "shifted by one place",
    Mistake.ONE_PLACE_EARLIER: "shifted by one place",
    Mistake.OPPOSITE_SIGN: "opposite sign",
    Mistake.SUM_FOR_MEAN: "sum instead of mean{over}",
    Mistake.DIVIDED_TOO_OFTEN: "divided once too often{over}",
    Mistake.FACTOR_OF_EACH_PART: "another factor on each rank",
    Mistake.SAME_VECTOR_IN_EVERY_ROW: "bias added too often or not at all",
    Mistake.ROUNDED_LOWER: "rounded to {dtype}",
    Mistake.NOT_QUANTISED: "not quantised to {reference_dtype}",
    Mistake.WRONG_SCALE: "wrong scale of codes",
    Mistake.WRONG_CODES: "wrong codes",
    Mistake.OTHER_SCALE: "quantised under another scale",
    Mistake.STALE_SCALE: "quantised under a stale scale",
    Mistake.SCALE_OF_EACH_PART: "amax not reduced{over}",
    Mistake.OTHER_CODES: "quantised to {dtype}",
    Mistake.OTHER_BLOCKS: "scales of other blocks",
    Mistake.ONE_TERM_OF_A_SUM: "one term of a sum{over}",
}

EXPECTED_BADGES = {
    Expected.DROPOUT: "dropout of each rank",
    Expected.BATCH_STATISTICS: "batch statistics of each rank",
    Expected.AUXILIARY_LOSS: "auxiliary loss of each rank",
    Expected.COMPRESSED_REDUCTION: "compressed reduction",
}

# Reasons that say what is wrong; others only say where.
REASON_BADGES = {
    Reason.NO_TENSOR_OF_IT: "module missing",
    Reason.OTHER_PARAMETERS: "other initial parameters",
    Reason.OTHER_SPLIT: "other split of parameters",
    Reason.OTHER_BY_THEN: "other state before the first recorded step",
    Reason.GATHERED_PARAMETER: "stale or wrongly gathered parameters",
    Reason.OTHER_DATA: "other data",
    Reason.CUT_OFF_FROM_AUTOGRAD: "cut off from autograd",
    Reason.COMMON_FACTOR: "wrong factor ({factor:.3g}x)",
    Reason.REPLICAS_DISAGREE: "missing reduction{over}",
    Reason.ROUNDED_LOWER: "rounded to a lower precision",
    Reason.NOT_THE_NORM: "wrong gradient norm",
    Reason.CLIPPED_GRADIENTS: "wrong clipping",
    Reason.CLIPS_ALONE: "clips alone",
    Reason.NO_STATE: "optimizer has other parameters",
    Reason.PARAMETERS_BUT_NOT_COPIES: "parameters not copied back",
}

FINDING_BADGES = {
    Finding.CONSTANT_FACTOR: "wrong factor ({gain:.3g}x)",
    Finding.FACTOR: "wrong factor ({gain:.6g}x)",
    Finding.SHIFT: "shifted by a constant",
    Finding.CHOICES: "other choices",
    Finding.TOKENS_MOVED: "tokens routed elsewhere",
    Finding.ROUNDED_ALIKE: "same random numbers on ranks",
    Finding.UPDATED_ALONE: "step not left out",
    Finding.UPDATED_BY_SOME: "step not made by all ranks",
    Finding.REPLICAS_DISAGREE: "replicas disagree{over}",
    Finding.RECOMPUTATION_DIFFERS: "recomputation differs",
    Finding.NONFINITE: "NaN or Inf",
    Finding.OTHER_INFINITIES: "infinite at other places",
    Finding.ONLY_IN_REFERENCE: "missing",
    Finding.NO_RANK_HOLDS: "shards missing",
    Finding.CANNOT_BE_ALIGNED: "other shape",
    Finding.LOWER_PRECISION: "lower precision",
    Finding.COARSER_THAN_TERMS: "lower precision",
    Finding.NOT_QUANTISED: "not quantised",
    Finding.NO_CODES: "not quantised",
    Finding.TAKEN_AS_CHUNKS: "other values or another split",
}

# Where the place says what is wrong, though not how.
STAGE_BADGES = {
    Stage.GRADIENT_ACCUMULATION: "microbatches not added up",
}
UNEQUAL_WEIGHTS = "microbatches weighed unequally"

_NO_AXES = ("ranks", "microbatches")


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A kind of mistake in a few words."""

    words: str
    is_known: bool = True
    nearest: str = ""  # where no kind is known, the one that comes nearest


def badge(
    culprit: Culprit,
    first: TensorResult | None,
    mesh: Mesh,
    topics: frozenset[Topic] = frozenset(),
) -> Badge:
    """What a culprit looks like, by the most telling of what is known.

    `first` is that of its evidence, `topics` are those of the result's notes.
    """
    words = _known(culprit, first, mesh)
    is_loss = culprit.blame.stage is Stage.LOSS
    if is_loss and Topic.UNEQUAL_WEIGHTS in topics and culprit.diagnosis is None:
        words = UNEQUAL_WEIGHTS
    if words:
        return Badge(words=words)
    near = culprit.nearest
    return Badge(
        words=UNKNOWN,
        is_known=False,
        nearest="" if near is None else mistake_badge(near.diagnosis),
    )


def _known(culprit: Culprit, first: TensorResult | None, mesh: Mesh) -> str:
    if culprit.expected is not None:
        return EXPECTED_BADGES[culprit.expected]
    if culprit.differences:
        return f"{culprit.differences[0].name} differs"
    if culprit.diagnosis is not None:
        return mistake_badge(culprit.diagnosis)
    over = _over(_disagreeing(first, mesh))
    if culprit.reason in REASON_BADGES:
        return REASON_BADGES[culprit.reason].format(over=over, factor=culprit.factor or 0.0)
    if first is not None and first.finding in FINDING_BADGES:
        gain = 0.0 if first.statistics is None else first.statistics.gain
        return FINDING_BADGES[first.finding].format(over=over, gain=gain)
    stage = culprit.blame.stage
    return "" if stage is None else STAGE_BADGES.get(stage, "")


def mistake_badge(found: Diagnosis) -> str:
    """One from outside has its name."""
    if found.mistake not in set(Mistake):
        return found.mistake.replace("_", " ")
    axes = found.axes or tuple(name for name in found.sizes if name not in _NO_AXES)
    over = _over(axes or found.sizes)
    return MISTAKE_BADGES[Mistake(found.mistake)].format(
        over=over, dtype=found.dtype, reference_dtype=found.reference_dtype
    )


def _disagreeing(first: TensorResult | None, mesh: Mesh) -> tuple[str, ...]:
    special = Specifics() if first is None or first.specifics is None else first.specifics
    return mesh.between(special.ranks, special.other_ranks)


def _over(axes: Sequence[str]) -> str:
    return f" over {' or '.join(axes)}" if axes else ""
