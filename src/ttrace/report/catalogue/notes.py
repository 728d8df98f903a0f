"""What a report says of a whole comparison: its notes, and how much of a step it covers."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from ttrace.core.finding import Topic
from ttrace.core.results import Lost, StepPart


@dataclass(frozen=True, slots=True)
class PartRow:
    """The words for a part of a step."""

    name: str
    _: KW_ONLY
    absent: str  # that nothing of it was recorded


TOPICS = {
    Topic.RUN: "{text}",
    Topic.YARDSTICK: "tolerances: {text}",
    Topic.OTHER_KERNELS: "the runs computed on different devices ({text}), whose kernels may all "
    "round to one side: tolerances allow for that, and find smaller errors on devices of one kind",
    Topic.NOISE_OF_ONE_DEVICE: "the runs computed on different devices ({text}), whose kernels may "
    "all round to one side; the perturbed reference has no such noise: record it with `ttrace run "
    "--noise-seed N --other-kernels`, as `ttrace diff` does",
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
    Topic.LOWER_PRECISION: "{count:tensor}, first {first}, {count:|is/are} no finer than {text}, "
    "as the candidate was told, or as a correct layout may be: this is no mistake by itself",
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
    "layouts hide mistakes from this comparison; isolated runs show them (`ttrace diff`, `ttrace "
    "isolate`)",
    Topic.OTHER_RECIPE: "{modules} {count:|makes/make} other codes than in the reference, or none: "
    "check that both runs quantise by the same recipe",
    Topic.LOSS_SCALE: "activation gradients are {factor:g} times the reference's, as a loss "
    "averaged over a part of the batch makes them; they are compared after dividing by it",
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

PARTS = {
    StepPart.FORWARD: PartRow("forward", absent="no output was recorded"),
    StepPart.BACKWARD: PartRow("backward", absent="no gradient was recorded"),
    StepPart.REDUCTION: PartRow("reduction", absent="no reduced gradient was recorded"),
    StepPart.UPDATE: PartRow("update", absent="no update was recorded"),
}

LOST = {
    Lost.STEP: "UNDECIDED: nothing could be compared that a training step makes",
    Lost.REFERENCE: "UNDECIDED: nothing differs, but only the candidate has {parts}: there is "
    "nothing to compare it with",
    Lost.RECORDING: "UNDECIDED: nothing differs, but not everything could be recorded, first "
    "{fault}",
    Lost.PROCESS: "UNDECIDED: nothing differs, but not everything could be traced; the notes say "
    "what and why",
}
