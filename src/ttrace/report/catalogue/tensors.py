"""What a report says of one tensor: in what way it is wrong, what was judged, and its verdict.

Terms explain the words of a report to whoever meets them first.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ttrace.core.finding import Finding
from ttrace.core.ids import Kind
from ttrace.core.results import Verdict
from ttrace.core.statistics import Statistic
from ttrace.report.catalogue import Row


@dataclass(frozen=True, slots=True)
class VerdictRow:
    """The words for a verdict, and how the page draws it."""

    term: str
    _: KW_ONLY
    sign: str = ""  # in a cell; without one, it is drawn by its ratio
    legend: str = ""  # what the legend has room for


FINDINGS = {
    Finding.EQUAL: Row("equal"),
    Finding.REPLICAS_ROUNDED: Row("replicas differ by rounding"),
    Finding.OVERFLOWED: Row("not finite, in a step that overflowed and that both runs left out"),
    Finding.SAME_ROWS: Row("names the same rows"),
    Finding.CONSTANT_FACTOR: Row(
        "a constant factor of {gain:.4g}", badge="wrong factor ({gain:.3g}x)"
    ),
    Finding.FACTOR: Row("a factor of {exact_gain}", badge="wrong factor ({gain:.6g}x)"),
    Finding.AVERAGE_FACTOR: Row("{exact_gain} x the reference on average"),
    Finding.SHIFT: Row("shifted by {shift:.3g}", badge="shifted by a constant"),
    Finding.CHOICES: Row(
        "{unequal} of {elements:choice} {unequal:|differs/differ}", badge="other choices"
    ),
    Finding.PLACE: Row("{place}"),
    Finding.NORM: Row(""),
    Finding.TOKENS_MOVED: Row(
        "{tokens}, noise explains {allowed_moves:g}",
        badge="tokens routed elsewhere",
        hint="check the router: its noise, its capacity, its dtype",
    ),
    Finding.LOWER_PRECISION: Row(
        "no finer than {dtype}, where the reference is as fine as {reference_dtype}",
        badge="lower precision",
        hint="look for a cast, an autocast region, or a dtype of communication or of state",
    ),
    Finding.COARSER_THAN_TERMS: Row(
        "no finer than {dtype}, where the sum of its own terms is as fine as {reference_dtype}",
        badge="lower precision",
        hint="look for a cast, a hook, or a dtype of communication between local gradients and "
        "reduced ones",
    ),
    Finding.NOT_QUANTISED: Row(
        "not quantised: the reference has nothing but numbers of {reference_dtype}",
        badge="not quantised",
        hint="look for a layer that is left out of the recipe, or a quantiser that is off here",
    ),
    Finding.NO_CODES: Row(
        "its module makes no codes, of {reference_dtype} in the reference",
        badge="not quantised",
        hint="look for a layer that is left out of the recipe, or a quantiser that is off here",
    ),
    Finding.TAKEN_AS_CHUNKS: Row(
        "ranks hold parts of it, taken as plain chunks", badge="other values or another split"
    ),
    Finding.ROUNDED_ALIKE: Row(
        "parts of {ranks} were rounded by the same random numbers",
        badge="same random numbers on ranks",
        hint="seed stochastic rounding by the rank, where ranks hold different parts",
    ),
    Finding.UPDATED_ALONE: Row(
        "updated in a step that the reference left out",
        badge="step not left out",
        hint="check when a step is left out: the loss scale, what counts as an overflow, a skipped "
        "batch",
    ),
    Finding.UPDATED_BY_SOME: Row(
        "updated on {ranks}, and not on {other_ranks}",
        badge="step not made by all ranks",
        hint="check what makes a rank leave its step out, and whether the others are told: a "
        "reduction of found overflows",
    ),
    Finding.REPLICAS_DISAGREE: Row(
        "replicas on {ranks} and {other_ranks} disagree by {relative_error:.2g} relative",
        badge="replicas disagree{over}",
        hint="look for a broadcast or reduction that is not made over all ranks that should hold "
        "the same",
    ),
    Finding.RECOMPUTATION_DIFFERS: Row(
        "recomputation differs from the original on {ranks} by {relative_error:.2g} relative",
        badge="recomputation differs",
        hint="look for a random state that is not restored when the forward is repeated",
    ),
    Finding.NONFINITE: Row(
        "{nonfinite} NaN or Inf, the reference has none",
        badge="NaN or Inf",
        hint="look for an overflow, a division by zero, or memory that is used before it is filled",
    ),
    Finding.OTHER_INFINITIES: Row(
        "infinite at other places: {nonfinite_reference} of the reference are not here, "
        "{nonfinite} here are not there",
        badge="infinite at other places",
    ),
    Finding.ONLY_IN_REFERENCE: Row(
        "only in the reference", badge="missing", hint="check why this is never computed here"
    ),
    Finding.ONLY_IN_CANDIDATE: Row("only in the candidate"),
    Finding.NO_RANK_HOLDS: Row(
        "no rank holds {gaps} of {shape}",
        badge="shards missing",
        hint="check which rank should hold the part that is missing",
    ),
    Finding.CANNOT_BE_ALIGNED: Row("{problem}", badge="other shape"),
    Finding.NO_PLACE_KNOWN: Row("its place is not known: {problem}; say it by {annotation}"),
    Finding.REFERENCE_CANNOT_BE_ALIGNED: Row("reference: {problem}"),
    Finding.REFERENCE_LACKS: Row("the reference itself lacks {gaps}"),
    Finding.REFERENCE_NONFINITE: Row(
        "the reference itself has {nonfinite_reference} NaN or Inf here; it must be finite"
    ),
    Finding.NO_YARDSTICK: Row(
        "differs, and no perturbed reference has it to tell how much rounding explains; pass "
        "--perturbed"
    ),
    Finding.CELLS_DO_NOT_FIT: Row(
        "its shards are not cut where its fingerprints are, so these cannot be put together; "
        "record with --capture full to compare it"
    ),
}

STATISTICS = {
    Statistic.NORM: Row(
        "the norm of the error",
        term="the size of the whole error: the root of the sum of its squares",
    ),
    Statistic.ROW: Row("row", term="the error of one row: every dim fixed but the last"),
    Statistic.SLICE: Row(
        "slice", term="the error where one dim is fixed: a channel, a head, a token"
    ),
    Statistic.ELEMENT: Row("element", term="the error of one element"),
    Statistic.GAIN: Row(
        "the error along the reference",
        term="the part of the error along the reference: by what factor it is too large",
    ),
    Statistic.SHIFT: Row(
        "the mean error", term="the mean error: by what constant all elements are off"
    ),
    Statistic.CHOICES: Row(
        "the number of choices that differ", term="how many whole numbers differ"
    ),
    Statistic.GRAIN: Row(
        "the precision", term="the bits of mantissa that only one of the runs uses"
    ),
    Statistic.COINCIDENCE: Row(
        "the rounding of parts", term="how alike parts on different ranks were rounded, 1 if always"
    ),
}

VERDICTS = {
    Verdict.PASS: VerdictRow("no further from the reference than rounding explains"),
    Verdict.MISMATCH: VerdictRow("further from the reference than rounding explains"),
    Verdict.BORDERLINE: VerdictRow(
        "a little further than allowed, and right when its module gets the reference's values"
    ),
    Verdict.HARMLESS: VerdictRow(
        "other inside a module, and everything that leaves there is right",
        sign="≈",
        legend="different without effect",
    ),
    Verdict.CONFLICT: VerdictRow(
        "ranks that should hold the same hold different values",
        sign="!",
        legend="replicas disagree",
    ),
    Verdict.INCOMPLETE: VerdictRow("a part of it is held by no rank", sign="∅"),
    Verdict.MISSING: VerdictRow(
        "the reference has it, the candidate does not", sign="∅", legend="missing"
    ),
    Verdict.EXTRA: VerdictRow("the candidate has it, the reference does not", sign="+"),
    Verdict.NONFINITE: VerdictRow("NaN or Inf where the reference has none", sign="NaN"),
    Verdict.SHAPE: VerdictRow("its pieces do not make up the reference's shape", sign="⊥"),
    Verdict.UNDECIDED: VerdictRow(
        "nothing says how much rounding explains here", sign="?", legend="undecided"
    ),
    Verdict.ACCEPTED: VerdictRow(
        "it fails, and the accept list allows it", sign="✓", legend="accepted"
    ),
}

KIND_TERMS = {
    Kind.PARAM: "a parameter before the step",
    Kind.INPUT: "what a module is given",
    Kind.OUTPUT: "what a module returns",
    Kind.LOSS: "the loss of the step",
    Kind.GRAD_OUTPUT: "the gradient that comes back to what a module returned",
    Kind.GRAD_INPUT: "the gradient that a module passes back to what it was given",
    Kind.GRAD: "the gradient of a parameter as a rank computed it",
    Kind.ACCUMULATED_GRAD: "the gradient of a parameter by all microbatches of a rank",
    Kind.REDUCED_GRAD: "the gradient of a parameter, summed over data-parallel ranks",
    Kind.MAIN_GRAD: "the gradient of a parameter after every reduction, before clipping",
    Kind.GRAD_NORM: "the norm by which gradients are clipped",
    Kind.CLIPPED_GRAD: "the gradient that the optimizer gets, where something clipped it",
    Kind.OPTIMIZER: "what the optimizer keeps of a parameter: moments, counts",
    Kind.PARAM_AFTER: "a parameter after the step",
    Kind.BUFFER: "a buffer of a module after the step, where it changed",
}

OTHER_TERMS = {
    "error / tolerance": "above 1 it is more than rounding explains",
    "tolerance": "what rounding explains, measured by runs of the reference with rounding noise",
    "noise": "how far a run of the reference with rounding noise is from the reference",
    "isolated run": "every module was given the reference's values, so that only what is itself "
    "wrong differs",
    "whole step": "the step as it ran: what is wrong, and all that follows from it",
    "eps": "the distance from 1 to the next number of the dtype",
    "ulp": "the distance to the next number of the dtype, at this value",
    "replica": "a rank that should hold the same values as another",
    "shard": "the part of a tensor that a rank holds",
    "mb": "microbatch: the part of the batch that is computed at once",
}
