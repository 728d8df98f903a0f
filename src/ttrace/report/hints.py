"""Hints: what to do next in code, by the kind of mistake, or else by the stage and phase."""

from __future__ import annotations

from ttrace.core.blame import Culprit, Mistake, Phase, Reason, Stage
from ttrace.core.finding import Finding
from ttrace.core.results import TensorResult

MISTAKE_HINTS = {
    Mistake.ALL_ZERO: "look for a buffer that is never filled, a receive or gather that is not "
    "made, or a branch that is skipped",
    Mistake.NOT_UPDATED: "look for an optimizer that does not hold this parameter, a step that is "
    "skipped, or a copy that is not made after it",
    Mistake.MISSING_ALL_REDUCE: "look for an all-reduce or reduce-scatter that is not called "
    "here, is called over another group, or a partial sum that is declared whole",
    Mistake.MISSING_AVERAGE: "look for an averaging all-reduce that is not called here, or is "
    "called over another group",
    Mistake.PARTS_EXCHANGED: "check the order of ranks in the group, and of parts in a fused "
    "weight (gate and up; query, key and value)",
    Mistake.PARTS_IN_OTHER_ORDER: "check the order in which shards are gathered or sent, and of "
    "parts in a fused weight",
    Mistake.TRANSPOSED: "look for a transpose that is missing or made twice",
    Mistake.ONE_PLACE_LATER: "look for an offset of positions, labels or schedules by one",
    Mistake.ONE_PLACE_EARLIER: "look for an offset of positions, labels or schedules by one",
    Mistake.OPPOSITE_SIGN: "look for a minus sign, or the order of a difference",
    Mistake.SUM_FOR_MEAN: "look for a sum over the group where its mean is due: ReduceOp.SUM, or "
    "a division by its size that is missing",
    Mistake.DIVIDED_TOO_OFTEN: "look for a division by the group's size that is made twice: in "
    "the loss and in the reduction, for example",
    Mistake.FACTOR_OF_EACH_PART: "look for a number that every rank computes from what it has "
    "alone: a count of tokens, a norm, a scale",
    Mistake.SAME_VECTOR_IN_EVERY_ROW: "look for a bias that every rank adds before a sum, or that "
    "none adds",
    Mistake.ROUNDED_LOWER: "look for a cast, an autocast region, or a dtype of communication",
    Mistake.NOT_QUANTISED: "look for a layer that is left out of the recipe, or a quantiser that "
    "is off here",
    Mistake.WRONG_SCALE: "check which scale is handed on with the codes (its own, not that of the "
    "other operand, nor its inverse), and the factor of what is quantised",
    Mistake.WRONG_CODES: "check the cast (does it saturate, how does it round), and what is cast",
    Mistake.OTHER_SCALE: "check of what the amax is taken, over which group it is reduced, and how "
    "a history of it is advanced",
    Mistake.STALE_SCALE: "check whether the amax history is advanced in every step, and when its "
    "scale is computed",
    Mistake.SCALE_OF_EACH_PART: "look for an all-reduce of the amax that is not made; where a "
    "recipe wants a scale for each rank, quantise the reference in the same blocks",
    Mistake.OTHER_CODES: "check which format the recipe has for this tensor: forward and backward "
    "may have different ones",
    Mistake.OTHER_BLOCKS: "check the granularity of the recipe, and along which dim blocks lie",
    Mistake.ONE_TERM_OF_A_SUM: "look for an all-reduce or reduce-scatter that is not made, or a "
    "partial sum that is declared whole",
}

REASON_HINTS = {
    Reason.NO_TENSOR_OF_IT: "check why it is not in the candidate's model, or is never called",
    Reason.OTHER_PARAMETERS: "check the seed, or the checkpoint that is loaded",
    Reason.OTHER_SPLIT: "check how the parameter is cut over ranks",
    Reason.OTHER_BY_THEN: "check what earlier steps do: record from the first one",
    Reason.GATHERED_PARAMETER: "look for an all-gather of updated parameters that is not made, or "
    "comes too early",
    Reason.OTHER_DATA: "check the sampler, its seed, and which samples each rank takes",
    Reason.CUT_OFF_FROM_AUTOGRAD: "look for detach(), .data, no_grad(), or a collective without a "
    "backward",
    Reason.COMMON_FACTOR: "look for a division by ranks, microbatches or tokens that is missing "
    "or made twice",
    Reason.REPLICAS_DISAGREE: "look for a gradient reduction that is not made, or is made over "
    "another group",
    Reason.ROUNDED_LOWER: "check the dtype in which gradients are reduced",
    Reason.NOT_THE_NORM: "check whether the norm is summed over all ranks that hold a part, and "
    "each parameter is counted once",
    Reason.CLIPPED_GRADIENTS: "check the norm to clip to, and which parameters are clipped",
    Reason.CLIPS_ALONE: "look for gradient clipping that is on in one of both runs",
    Reason.NO_STATE: "look for an optimizer that was made before the model was wrapped, or moved",
    Reason.PARAMETERS_BUT_NOT_COPIES: "check the copy from the full-precision parameters after "
    "the step",
}

FINDING_HINTS = {
    Finding.TOKENS_MOVED: "check the router: its noise, its capacity, its dtype",
    Finding.RECOMPUTATION_DIFFERS: "look for a random state that is not restored when the forward "
    "is repeated",
    Finding.ROUNDED_ALIKE: "seed stochastic rounding by the rank, where ranks hold different parts",
    Finding.UPDATED_ALONE: "check when a step is left out: the loss scale, what counts as an "
    "overflow, a skipped batch",
    Finding.UPDATED_BY_SOME: "check what makes a rank leave its step out, and whether the others "
    "are told: a reduction of found overflows",
    Finding.REPLICAS_DISAGREE: "look for a broadcast or reduction that is not made over all ranks "
    "that should hold the same",
    Finding.LOWER_PRECISION: "look for a cast, an autocast region, or a dtype of communication or "
    "of state",
    Finding.COARSER_THAN_TERMS: "look for a cast, a hook, or a dtype of communication between "
    "local gradients and reduced ones",
    Finding.NOT_QUANTISED: "look for a layer that is left out of the recipe, or a quantiser that "
    "is off here",
    Finding.NO_CODES: "look for a layer that is left out of the recipe, or a quantiser that is off "
    "here",
    Finding.NONFINITE: "look for an overflow, a division by zero, or memory that is used before "
    "it is filled",
    Finding.ONLY_IN_REFERENCE: "check why this is never computed here",
    Finding.NO_RANK_HOLDS: "check which rank should hold the part that is missing",
}

STAGE_HINTS = {
    Stage.MODEL_INPUT: "check the sampler, its seed, and which samples each rank takes",
    Stage.INITIAL_PARAMETERS: "check the seed, or the checkpoint that is loaded",
    Stage.LOSS: "check the reduction of the loss, its mask, and what it is divided by",
    Stage.BACKWARD: "check what is passed to backward(), and the scale of the loss",
    Stage.GRADIENT_ACCUMULATION: "check when gradients are cleared, and what every microbatch is "
    "divided by",
    Stage.GRADIENT_REDUCTION: "check over which group gradients are summed, and what they are "
    "divided by",
    Stage.GRADIENT_CLIPPING: "check the norm, over which ranks it is summed, and what it is "
    "compared with",
    Stage.OPTIMIZER_STEP: "check the numbers that the optimizer was given, and which parameters "
    "it holds",
}

PHASE_HINTS = {
    Phase.MISSING: "check why it is not in the candidate's model, or is never called",
    Phase.PARAMETERS: "check the seed, or the checkpoint that is loaded",
    Phase.PARAMETER_GATHER: "look for an all-gather of updated parameters that is not made, or "
    "comes too early",
    Phase.INPUTS: "check what is passed to it, and from where",
    Phase.FORWARD: "check what it computes on its own: scales, masks, offsets, the collective at "
    "its end",
    Phase.BACKWARD: "look for a hand-written backward, or the collective that its input's "
    "gradient needs",
    Phase.WEIGHT_GRADIENT: "check how the gradient of its own parameters is computed and summed",
    Phase.GRADIENT_ACCUMULATION: "check when gradients are cleared, and what every microbatch is "
    "divided by",
    Phase.GRADIENT_REDUCTION: "check over which group this gradient is summed, and what it is "
    "divided by",
    Phase.MAIN_GRADIENT: "check over which group this gradient is summed, and what it is divided "
    "by",
    Phase.GRADIENT_NORM: "check over which ranks the norm is summed",
    Phase.CLIP: "check the norm to clip to, and which parameters are clipped",
    Phase.STATE: "check what the optimizer keeps, and where it comes from",
    Phase.UPDATE: "check the numbers that the optimizer was given, and which parameters it holds",
    Phase.BUFFER: "check who writes this buffer, and over which ranks it is summed",
}

# Whatever the tensor looks like.
_DECISIVE = (
    *(Reason.NO_TENSOR_OF_IT, Reason.OTHER_PARAMETERS, Reason.OTHER_SPLIT, Reason.OTHER_BY_THEN),
    *(Reason.OTHER_DATA, Reason.CUT_OFF_FROM_AUTOGRAD, Reason.CLIPS_ALONE, Reason.NO_STATE),
)


def hint(culprit: Culprit, first: TensorResult | None) -> str:
    """The most telling hint; `first` of its evidence."""
    if culprit.differences:
        return f"check where {culprit.differences[0].name} is set"
    if culprit.reason in _DECISIVE:
        return REASON_HINTS[culprit.reason]
    nearest = None if culprit.nearest is None else culprit.nearest.diagnosis
    found = culprit.diagnosis or nearest
    if found is not None and found.mistake in set(Mistake):
        return MISTAKE_HINTS[Mistake(found.mistake)]
    if culprit.reason in REASON_HINTS:
        return REASON_HINTS[culprit.reason]
    if first is not None and first.finding in FINDING_HINTS:
        return FINDING_HINTS[first.finding]
    if culprit.blame.stage is not None:
        return STAGE_HINTS[culprit.blame.stage]
    return PHASE_HINTS[culprit.blame.phase]
