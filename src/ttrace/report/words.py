"""Words: every sentence about a result, by the enums that programs switch on.

Nothing but report/wording.py uses them, and nothing reads them but people: verdicts, culprits and
exit codes are the same whatever stands here.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any

from ttrace.core.blame import Phase, Reason, Stage
from ttrace.core.finding import Finding, Topic
from ttrace.core.readings import Statistic
from ttrace.report.caveats import CAVEATS, EXPECTED, LOST, NOT_RECORDED, PARTS
from ttrace.report.mistakes import MISTAKES

STAGES = {
    Stage.MODEL_INPUT: "model input",
    Stage.INITIAL_PARAMETERS: "initial parameters",
    Stage.LOSS: "loss",
    Stage.BACKWARD: "backward",
    Stage.GRADIENT_ACCUMULATION: "gradient accumulation",
    Stage.GRADIENT_REDUCTION: "gradient reduction",
    Stage.GRADIENT_CLIPPING: "gradient clipping",
    Stage.OPTIMIZER_STEP: "optimizer step",
}

PHASES = {
    Phase.MISSING: "missing",
    Phase.PARAMETERS: "parameters",
    Phase.PARAMETER_GATHER: "parameter gather",
    Phase.INPUTS: "inputs",
    Phase.FORWARD: "forward",
    Phase.BACKWARD: "backward",
    Phase.WEIGHT_GRADIENT: "weight gradient",
    Phase.GRADIENT_ACCUMULATION: "gradient accumulation",
    Phase.GRADIENT_REDUCTION: "gradient reduction",
    Phase.MAIN_GRADIENT: "main gradient",
    Phase.GRADIENT_NORM: "grad norm",
    Phase.CLIP: "clip",
    Phase.STATE: "state",
    Phase.UPDATE: "update",
    Phase.BUFFER: "buffer",
}

REASONS = {
    Reason.NO_TENSOR_OF_IT: "the reference has it, the candidate has no tensor of it",
    Reason.OTHER_PARAMETERS: "{count} of {total:parameter} {count:|differs/differ} before the "
    "step ({names} first): load the same values in both runs",
    Reason.OTHER_SPLIT: "{count} of {total:parameter} {count:|differs/differ} before the step "
    "({names} first), parts taken as plain chunks: load the same values, or say how they are "
    "split: {annotation}",
    Reason.OTHER_BY_THEN: "{count} of {total} parameters and states {count:|differs/differ} "
    "before the first recorded step: what made them so lies in steps that were not recorded "
    "(--skip)",
    Reason.GATHERED_PARAMETER: "its last update passes; at the start of this step, {slots} does "
    "not: {why}",
    Reason.OTHER_DATA: "the candidate was given other data than the reference (input {slots}): "
    "{why}",
    Reason.FIRST_WRONG_OUTPUT: "its output is the first wrong tensor: {why}",
    Reason.INPUT_FOR_CHILD: "the input it makes for {module} is the first wrong tensor: {why}",
    Reason.LOSS_ALONE: "every module output passes, the loss does not: {why}",
    Reason.GRADIENT_OF_INPUT: "the gradient of its input is the first wrong: {why}",
    Reason.GRADIENT_PASSED_BACK: "the gradient it passes back to {module} is the first wrong: "
    "{why}",
    Reason.GRADIENT_OF_MODEL_OUTPUT: "the gradient of the model's output is the first wrong: {why}",
    Reason.LOCAL_GRADIENT: "activations and their gradients pass, {slots} does not: {why}",
    Reason.ALL_LOCAL_GRADIENTS: "activations and their gradients pass, {count} of {total:local "
    "gradient} of parameters {count:|does/do} not",
    Reason.GIVEN_REFERENCE_VALUES: "given the reference's values, {tensor} is wrong: {why}{more}",
    Reason.CUT_OFF_FROM_AUTOGRAD: "the reference has a {tensor}, the candidate has none: a tensor "
    "was cut off from autograd (detach, no_grad, data), and {count:gradient is/gradients are} "
    "never made",
    Reason.ACCUMULATED_GRADIENT: "its local gradient passes, accumulated, {slots} does not: {why}",
    Reason.ALL_ACCUMULATED_GRADIENTS: "local gradients pass, {count} of {total:sum of them that "
    "is/sums of them that are} given to the reduction {count:|does/do} not: {why}",
    Reason.REDUCED_GRADIENT: "its local gradient passes, reduced, {slots} does not: {why}",
    Reason.DATA_PARALLEL_GRADIENT: "its local gradient passes, reduced over data-parallel ranks, "
    "{slots} does not: {why}",
    Reason.FINALISED_GRADIENT: "reduced over data-parallel ranks it passes, finalised (summed over "
    "tensor-parallel ranks and stages, divided by tokens), {slots} does not: {why}",
    Reason.UNSEEN_LOCAL_GRADIENT: "activations and their gradients pass, {slots} does not: {why}",
    Reason.COMMON_FACTOR: "all {gradients} are {factor:.4g} times the reference's ({count} of "
    "{total}) while activation gradients pass",
    Reason.REPLICAS_DISAGREE: "replicas of the {gradients} disagree ({count} of {total}) while "
    "activation gradients pass",
    Reason.ROUNDED_LOWER: "{gradients} were rounded to a lower precision ({count} of {total}) "
    "while activation gradients pass",
    Reason.NO_COMMON_FACTOR: "{gradients} differ without a common factor ({count} of {total}) "
    "while activation gradients pass",
    Reason.NOT_THE_NORM: "it is not the norm of the main gradients: {why}",
    Reason.CLIPPED_GRADIENTS: "main gradients and their norm pass, {count} of {total:clipped "
    "gradient} {count:|does/do} not: {why}",
    Reason.CLIPS_ALONE: "the candidate clips its gradients, the reference does not",
    Reason.OPTIMIZER_STATE: "the gradients it was given pass, {count} of {total:tensor} of its "
    "state {count:|does/do} not: {why}",
    Reason.STATE_OF_UNSEEN_GRADIENTS: "{count} of {total:tensor} of its state {count:|is/are} "
    "wrong: {why}; the gradients it was given were not seen",
    Reason.NO_STATE: "it has no state for {count:parameter} that the reference's has: does it "
    "step on the parameters that the model uses?",
    Reason.NOT_LEFT_OUT_BY_ALL: "{count} of {total:new parameter} {count:|is/are} of a step that "
    "not everybody made: {why}",
    Reason.NEW_PARAMETER: "its main gradient passes, {slots} does not: {why}",
    Reason.ALL_NEW_PARAMETERS: "main gradients pass, {count} of {total:new parameter} "
    "{count:|does/do} not: {why}",
    Reason.PARAMETERS_OF_UNSEEN_GRADIENTS: "{count} of {total:new parameter} {count:|is/are} "
    "wrong: {why}; the gradients that made them were not seen",
    Reason.PARAMETERS_BUT_NOT_COPIES: "the optimizer's copies in full precision pass, {count} of "
    "{total:new parameter} {count:|does/do} not: {why}",
    Reason.BUFFER: "everything else passes, {slots} does not: {why}",
    Reason.TOLD: "{told}",
}

STATISTICS = {
    Statistic.NORM: "the norm of the error",
    Statistic.ROW: "row",
    Statistic.SLICE: "slice",
    Statistic.ELEMENT: "element",
    Statistic.GAIN: "the error along the reference",
    Statistic.SHIFT: "the mean error",
    Statistic.GRAIN: "the precision",
    Statistic.COINCIDENCE: "the rounding of parts",
    Statistic.CHOICES: "the number of choices that differ",
}


FINDINGS = {
    Finding.EQUAL: "equal",
    Finding.REPLICAS_ROUNDED: "replicas differ by rounding",
    Finding.OVERFLOWED: "not finite, in a step that overflowed and that both runs left out",
    Finding.SAME_ROWS: "names the same rows",
    Finding.CONSTANT_FACTOR: "a constant factor of {gain:.4g}",
    Finding.FACTOR: "a factor of {exact_gain}",
    Finding.AVERAGE_FACTOR: "{exact_gain} x the reference on average",
    Finding.SHIFT: "shifted by {shift:.3g}",
    Finding.CHOICES: "{unequal} of {elements:choice} {unequal:|differs/differ}",
    Finding.PLACE: "{place}",
    Finding.NORM: "",
    Finding.LOWER_PRECISION: "no finer than {dtype}, where the reference is as fine as "
    "{reference_dtype}",
    Finding.COARSER_THAN_TERMS: "no finer than {dtype}, where the sum of its own terms is as fine "
    "as {reference_dtype}",
    Finding.NOT_QUANTISED: "not quantised: the reference has nothing but numbers of "
    "{reference_dtype}",
    Finding.NO_CODES: "its module makes no codes, of {reference_dtype} in the reference",
    Finding.TAKEN_AS_CHUNKS: "ranks hold parts of it, taken as plain chunks",
    Finding.TOKENS_MOVED: "{tokens}, noise explains {allowed_moves:g}",
    Finding.ROUNDED_ALIKE: "parts of {ranks} were rounded by the same random numbers",
    Finding.UPDATED_ALONE: "updated in a step that the reference left out",
    Finding.UPDATED_BY_SOME: "updated on {ranks}, and not on {other_ranks}",
    Finding.REPLICAS_DISAGREE: "replicas on {ranks} and {other_ranks} disagree by "
    "{relative_error:.2g} relative",
    Finding.RECOMPUTATION_DIFFERS: "recomputation differs from the original on {ranks} by "
    "{relative_error:.2g} relative",
    Finding.NONFINITE: "{nonfinite} NaN or Inf, the reference has none",
    Finding.OTHER_INFINITIES: "infinite at other places: {nonfinite_reference} of the reference "
    "are not here, {nonfinite} here are not there",
    Finding.ONLY_IN_REFERENCE: "only in the reference",
    Finding.ONLY_IN_CANDIDATE: "only in the candidate",
    Finding.NO_RANK_HOLDS: "no rank holds {gaps} of {shape}",
    Finding.CANNOT_BE_ALIGNED: "{problem}",
    Finding.CELLS_DO_NOT_FIT: "its shards are not cut where its fingerprints are, so these cannot "
    "be put together; record with --capture full to compare it",
    Finding.NO_PLACE_KNOWN: "its place is not known: {problem}; say it by {annotation}",
    Finding.REFERENCE_CANNOT_BE_ALIGNED: "reference: {problem}",
    Finding.REFERENCE_LACKS: "the reference itself lacks {gaps}",
    Finding.REFERENCE_NONFINITE: "the reference itself has {nonfinite_reference} NaN or Inf here; "
    "it must be finite",
    Finding.NO_YARDSTICK: "differs, and no perturbed reference has it to tell how much rounding "
    "explains; pass --perturbed",
    Finding.TOLD: "{told}",
}

TOPICS = {
    Topic.RUN: "{text}",
    Topic.YARDSTICK: "tolerances: {text}",
    Topic.OTHER_KERNELS: "the runs computed on different devices ({text}), whose kernels may all "
    "round to one side: tolerances allow for that, and find smaller errors on devices of one kind",
    Topic.NOISE_OF_ONE_DEVICE: "the runs computed on different devices ({text}), whose kernels may "
    "all round to one side; the perturbed reference has no such noise: record it with "
    "`ttrace run --noise-seed N --other-kernels`, as `ttrace diff` does",
    Topic.OTHER_START: "a perturbed reference was left out: it started from other parameters than "
    "the reference ({count:parameter differs/parameters differ}, first {first}); seed the run, or "
    "load the same values",
    Topic.OTHER_CALLS: "a perturbed reference was left out: it made other calls than the reference "
    "did, or in another precision ({count:tensor is/tensors are} in one of them only, first "
    "{first})",
    Topic.OTHER_INPUTS: "a perturbed reference was left out: its model was given other data than "
    "the reference's ({count:input differs/inputs differ}, first {first}); seed what draws the "
    "data, or load the same",
    Topic.OTHER_UPDATES: "a perturbed reference was left out: it updated parameters by another "
    "amount than the reference, which is no rounding ({count:parameter}, first {first})",
    Topic.ALIGNMENT: "{text}",
    Topic.INFERRED_LAYOUTS: "layout inferred from the shape: {count:tensor}, first {first}; no "
    "layout was declared; ttrace.annotate can declare it",
    Topic.FINGERPRINTS: "{count:tensor} of {total} {count:|was/were} compared by fingerprints: a "
    "place is the first index of a cell, and values are not known",
    Topic.KEPT_TOGETHER: "{count:gradient}, first {first}, {count:|was/were} not compared by "
    "{count:|itself/themselves}: in one of the runs the tensor has several uses, and only the "
    "gradient over all of them is there, which is compared",
    Topic.COVERING_RANKS: "the candidate was read from {count} of {total:rank}, which hold every "
    "part of every tensor",
    Topic.OTHER_REPLICAS: "{count} of {total:replica} on other ranks, first of {first}, "
    "{count:|differs/differ} from what was read and {count:|was/were} not compared: check without "
    "`--sample-ranks`",
    Topic.SCALES_OF_BLOCKS: "ranks or microbatches of the candidate hold fewer samples than the "
    "reference quantises at once: {modules} ran in the same {total:block} of samples in the "
    "reference, each with scales of its own, and errors are in the mean {factor:.2g} of those with "
    "scales of all samples",
    Topic.SCALES_OF_ALL: "ranks or microbatches of the candidate hold {total:block} of the samples "
    "that the reference quantises at once; a reference in which {modules} ran in these blocks is "
    "no closer (errors are in the mean {factor:.2g} of those without), so that scales are taken to "
    "be those of all samples",
    Topic.QUANTISED_AMONG_CALLS: "{modules} {count:|quantises/quantise} between calls of other "
    "modules, so that the reference could not do it in the candidate's blocks of samples: scales "
    "of a rank's samples, if it has such, differ from the reference's there",
    Topic.CODES_FLIP: "{modules} {count:|quantises/quantise}: codes that flip between correct "
    "layouts hide mistakes from this comparison; isolated runs show them (`ttrace diff`, "
    "`ttrace isolate`)",
    Topic.OTHER_RECIPE: "{modules} {count:|makes/make} other codes than in the reference, or none: "
    "check that both runs quantise by the same recipe",
    Topic.LOSS_SCALE: "activation gradients are {factor:g} times the reference's, as a loss "
    "averaged over a part of the batch makes them; they are compared after dividing by it",
    Topic.LOWER_PRECISION: "{count:tensor}, first {first}, {count:|is/are} no finer than {text}, "
    "as the candidate was told, or as a correct layout may be: this is no mistake by itself",
    Topic.UNEQUAL_WEIGHTS: "the loss weighs microbatches differently from the reference: its "
    "gradient is {gains} times the reference's; a mean of means over unequal counts is a different "
    "loss",
    Topic.DETERMINISTIC: "the reference is deterministic: {total:tensor is/tensors are} bitwise "
    "equal again",
    Topic.NOT_DETERMINISTIC: "the reference is not deterministic: {count} of {total:tensor} "
    "{count:|differs/differ} between two runs of it, first {first}; that distance counts as noise",
    Topic.NO_ROOT_CAUSE: "the isolated run found no root cause, as every module is right when it "
    "gets the reference's values: the places named are where the first difference was seen",
    Topic.NO_EVIDENCE: "this stands without what a further run would have told: {text}",
    Topic.COARSER: "the isolated run was repeated with values given at the boundaries of blocks "
    "alone, so that no place inside a block is named, since at first {text}",
    Topic.MORE_RUNS: "borderline with {total:perturbed run}, the largest error {gains} of its "
    "tolerance: {count:further perturbed run was/further perturbed runs were} made, and it is "
    "{factor:.2f}",
    Topic.RIGHT_BY_ITSELF: "borderline: {count:tensor}, first {first}, {count:|is/are} up to "
    "{factor:.2f} of {count:|its/their} tolerance, and the isolated run finds every one right when "
    "its module gets the reference's values, so that this is rounding that has grown",
    Topic.HARMLESS: "different but equal: {count:tensor} inside {modules}, first {first}, "
    "{count:|differs/differ} from the reference, and everything that leaves there is right: "
    "outputs, gradients of inputs and of weights; an error of that size at random would have shown "
    "there, or has no effect at all (--strict fails this)",
    Topic.REDUCED_ELSEWHERE: "{count:gradient}, first {first}, {count:|is that/are those} of a "
    "rank alone when the step ends; the updates are right, so that they were made from gradients "
    "that were reduced elsewhere, which is not seen",
    Topic.OTHER_NUMBER: "{difference}; none of the places named follows from it",
    Topic.FEWER_STEPS: "{count} of {total:step} {count:|was/were} made, so nothing is known of the "
    "others: let the script make more, or ask for fewer with --steps",
    Topic.DIED_AT_EXIT: "the {text} after all of its steps had been recorded; what it recorded is "
    "compared",
    Topic.NOT_ATTACHED: "{text}",
    Topic.BORDERLINE: "borderline: the largest error is {factor:.2f} of its tolerance; further "
    "perturbed references, which `ttrace diff` runs by itself, and an isolated run decide it",
}


class Line(StrEnum):
    """Sentences about a result as a whole, and the pieces that others are made of."""

    EQUIVALENT = "equivalent"
    EQUIVALENT_BUT = "equivalent_but"
    SOME_BORDERLINE = "some_borderline"
    SOME_HARMLESS = "some_harmless"
    SOME_ACCEPTED = "some_accepted"
    NOT_EQUIVALENT = "not_equivalent"
    STRENGTH = "strength"
    NEARNESS = "nearness"
    UNDECIDED = "undecided"
    FEWER_STEPS = "fewer_steps"
    AND_MORE = "and_more"
    MORE_POINTS = "more_points"
    MORE_PLACES = "more_places"
    FOLLOW_ON = "follow_on"
    ISOLATED_ALONE = "isolated_alone"
    REST = "rest"
    ROOT_CAUSE = "root_cause"
    WORST_PLACE = "worst_place"
    ALLOWED = "allowed"
    REPORT = "report"
    RATIO = "ratio"
    MUST_BE_EQUAL = "must_be_equal"
    EVIDENCE = "evidence"
    RANKS = "ranks"
    ON_RANKS = "on_ranks"
    TOKENS = "tokens"
    CANDIDATE_NOT_WHOLE = "candidate_not_whole"
    REFERENCE_NOT_WHOLE = "reference_not_whole"
    IN_STEPS = "in_steps"
    OTHER_NUMBER = "other_number"
    COUNTS = "counts"
    NO_COUNTS = "no_counts"
    WRONG = "wrong"
    FIRST_WRONG = "first_wrong"
    FIRST_UNDECIDED = "first_undecided"
    SOME_UNDECIDED = "some_undecided"
    HOOKS = "hooks"
    CAPTURED = "captured"
    ALL_HOOKS = "all_hooks"
    NO_HOOKS = "no_hooks"
    SAMPLED = "sampled"
    UNFIRED = "unfired"
    NEVER_CALLED = "never_called"
    CANDIDATE_ONLY = "candidate_only"
    FAULTS = "faults"
    REFERENCE_FAULTS = "reference_faults"
    AXIS = "axis"
    NUMBER = "number"
    MAIN_GRADIENTS = "main_gradients"
    REDUCED_GRADIENTS = "reduced_gradients"
    THE_STEP = "the_step"
    LIKENESS = "likeness"
    NEAREST = "nearest"
    IN_FUNCTION = "in_function"
    EVERY_RANK = "every_rank"
    REFERENCE_VALUE = "reference_value"
    VALUE = "value"
    ELEMENT = "element"
    MORE_VALUES = "more_values"
    KIND_OF_FAILURE = "kind_of_failure"
    EXPORT_IT = "export_it"
    REPEAT_IT = "repeat_it"


LINES = {
    Line.EQUIVALENT: "EQUIVALENT{parts}: all {compared:tensor} within tolerance ({equal} exactly "
    "equal, the largest error is {worst:.2f} of its tolerance)",
    Line.EQUIVALENT_BUT: "EQUIVALENT{parts}: {within} of {compared:tensor} within tolerance, "
    "{others} ({equal} exactly equal)",
    Line.SOME_BORDERLINE: "{count} borderline (up to {worst:.2f} of it) and right by "
    "{count:|itself/themselves}",
    Line.SOME_HARMLESS: "{count} different without an effect",
    Line.SOME_ACCEPTED: "{count} accepted",
    Line.NOT_EQUIVALENT: "NOT EQUIVALENT{strength}: {place}",
    Line.STRENGTH: " ({strength}, {ratio} the tolerance)",
    Line.NEARNESS: "largest error / tolerance by kind: {kinds}",
    Line.UNDECIDED: "UNDECIDED: {count:tensor}, first {id}: {note}",
    Line.FEWER_STEPS: "UNDECIDED: {count} of {total:step} {count:|was/were} made; in "
    "{count:|it/these}, no tensor differs",
    Line.AND_MORE: " (and {count} more)",
    Line.MORE_POINTS: " (and {count} more)",
    Line.MORE_PLACES: "and {count:more place}",
    Line.FOLLOW_ON: "{failures:tensor} of {modules:module} {failures:|differs/differ}; the "
    "isolated run found {count:root cause}{rest}",
    Line.ISOLATED_ALONE: "no tensor of the plain comparison fails, where rounding that grows from "
    "layer to layer hides it; the isolated run found {count:root cause}",
    Line.REST: ", the rest are follow-on errors",
    Line.ROOT_CAUSE: "root cause: {place}: {reason}",
    Line.WORST_PLACE: "worst place: {id}: {evidence}",
    Line.ALLOWED: "allowed: error norm {norm:.3g} ({source})",
    Line.REPORT: "report: {path}",
    Line.RATIO: "{ratio} its tolerance",
    Line.MUST_BE_EQUAL: "it must be equal, and {unequal} of {elements:element} {unequal:|is/are} "
    "not",
    Line.EVIDENCE: "{what} is {ratio} what is allowed ({value:.3g} > {allowed:.3g})",
    Line.RANKS: "rank{s} {ranks}",
    Line.ON_RANKS: "on {ranks}",
    Line.TOKENS: "{moved:token} routed elsewhere",
    Line.CANDIDATE_NOT_WHOLE: "but the candidate could not be recorded whole: {fault}",
    Line.REFERENCE_NOT_WHOLE: "but the reference could not be recorded whole: {fault}",
    Line.IN_STEPS: " (step {steps})",
    Line.OTHER_NUMBER: "{name}{of} is {candidate}, the reference's {reference}{where}",
    Line.COUNTS: "{verdicts}; tolerances from {runs:perturbed reference run}",
    Line.NO_COUNTS: "nothing compared",
    Line.WRONG: "{count} of {total:tensor} wrong",
    Line.FIRST_WRONG: "{count} of {total:tensor} wrong; the first in execution order:",
    Line.FIRST_UNDECIDED: "{count} of {total:tensor} undecided; the first in execution order:",
    Line.SOME_UNDECIDED: "{count} of {total} undecided",
    Line.HOOKS: "gradient hooks: {fired} of {expected} fired",
    Line.CAPTURED: "everything was captured: every module was called, and {hooks}",
    Line.ALL_HOOKS: "all {expected:gradient hook} fired",
    Line.NO_HOOKS: "no gradient was expected",
    Line.SAMPLED: "wrong ranks and rows of {count:large tensor} were looked for in a sample, "
    "{least:.1%} of the elements or more",
    Line.UNFIRED: "no gradient reached",
    Line.NEVER_CALLED: "never called",
    Line.CANDIDATE_ONLY: "never called by the reference, only by the candidate",
    Line.FAULTS: "could not be recorded",
    Line.REFERENCE_FAULTS: "could not be recorded of the reference",
    Line.AXIS: "the size of {name}",
    Line.NUMBER: "the number of {name}",
    Line.MAIN_GRADIENTS: "main gradients",
    Line.THE_STEP: "the step as a whole",
    Line.IN_FUNCTION: "in {name} ({place})",
    Line.LIKENESS: "nearest: {said}",
    Line.NEAREST: "nearest, {share:.0%} of the squared error: {said}",
    Line.EVERY_RANK: "every rank",
    Line.MORE_VALUES: "and {count} more",
    Line.REFERENCE_VALUE: "reference: {value:.6g}",
    Line.VALUE: "{where}: {value:.6g}",
    Line.ELEMENT: "element ({index}) is {candidate:.4g}, the reference's {reference:.4g}{where}",
    Line.KIND_OF_FAILURE: "{verdict}, which rounding cannot make",
    Line.EXPORT_IT: "take it to a notebook",
    Line.REPEAT_IT: "repeat it",
    Line.REDUCED_GRADIENTS: "gradients reduced over data-parallel ranks",
}

# All sentences; one that is missing here is missing in every form of report.
TABLES: tuple[dict[Any, str], ...] = (
    *(STAGES, PHASES, REASONS, MISTAKES),
    *(STATISTICS, FINDINGS, TOPICS, LINES),
    *(PARTS, NOT_RECORDED, LOST, CAVEATS, EXPECTED),
)
