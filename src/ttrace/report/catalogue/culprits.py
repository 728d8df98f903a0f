"""What a report says of a culprit: its place, why it is blamed, and what it looks like."""

from __future__ import annotations

from ttrace.core.blame import Expected, Mistake, Phase, Reason, Stage
from ttrace.report.catalogue import Row

STAGES = {
    Stage.MODEL_INPUT: Row(
        "model input", hint="check the sampler, its seed, and which samples each rank takes"
    ),
    Stage.INITIAL_PARAMETERS: Row(
        "initial parameters", hint="check the seed, or the checkpoint that is loaded"
    ),
    Stage.LOSS: Row(
        "loss", hint="check the reduction of the loss, its mask, and what it is divided by"
    ),
    Stage.BACKWARD: Row(
        "backward", hint="check what is passed to backward(), and the scale of the loss"
    ),
    Stage.GRADIENT_ACCUMULATION: Row(
        "gradient accumulation",
        badge="microbatches not added up",
        hint="check when gradients are cleared, and what every microbatch is divided by",
    ),
    Stage.GRADIENT_REDUCTION: Row(
        "gradient reduction",
        hint="check over which group gradients are summed, and what they are divided by",
    ),
    Stage.GRADIENT_CLIPPING: Row(
        "gradient clipping",
        hint="check the norm, over which ranks it is summed, and what it is compared with",
    ),
    Stage.OPTIMIZER_STEP: Row(
        "optimizer step",
        hint="check the numbers that the optimizer was given, and which parameters it holds",
    ),
}

PHASES = {
    Phase.MISSING: Row(
        "missing", hint="check why it is not in the candidate's model, or is never called"
    ),
    Phase.PARAMETERS: Row("parameters", hint="check the seed, or the checkpoint that is loaded"),
    Phase.PARAMETER_GATHER: Row(
        "parameter gather",
        hint="look for an all-gather of updated parameters that is not made, or comes too early",
    ),
    Phase.INPUTS: Row("inputs", hint="check what is passed to it, and from where"),
    Phase.FORWARD: Row(
        "forward",
        hint="check what it computes on its own: scales, masks, offsets, the collective at its end",
    ),
    Phase.BACKWARD: Row(
        "backward",
        hint="look for a hand-written backward, or the collective that its input's gradient needs",
    ),
    Phase.WEIGHT_GRADIENT: Row(
        "weight gradient",
        hint="check how the gradient of its own parameters is computed and summed",
    ),
    Phase.GRADIENT_ACCUMULATION: Row(
        "gradient accumulation",
        hint="check when gradients are cleared, and what every microbatch is divided by",
    ),
    Phase.GRADIENT_REDUCTION: Row(
        "gradient reduction",
        hint="check over which group this gradient is summed, and what it is divided by",
    ),
    Phase.MAIN_GRADIENT: Row(
        "main gradient",
        hint="check over which group this gradient is summed, and what it is divided by",
    ),
    Phase.GRADIENT_NORM: Row("grad norm", hint="check over which ranks the norm is summed"),
    Phase.CLIP: Row("clip", hint="check the norm to clip to, and which parameters are clipped"),
    Phase.STATE: Row("state", hint="check what the optimizer keeps, and where it comes from"),
    Phase.UPDATE: Row(
        "update",
        hint="check the numbers that the optimizer was given, and which parameters it holds",
    ),
    Phase.BUFFER: Row(
        "buffer", hint="check who writes this buffer, and over which ranks it is summed"
    ),
}

REASONS = {
    Reason.NO_TENSOR_OF_IT: Row(
        "the reference has it, the candidate has no tensor of it",
        badge="module missing",
        hint="check why it is not in the candidate's model, or is never called",
    ),
    Reason.OTHER_PARAMETERS: Row(
        "{count} of {total:parameter} {count:|differs/differ} before the step ({names} first): "
        "load the same values in both runs",
        badge="other initial parameters",
        hint="check the seed, or the checkpoint that is loaded",
    ),
    Reason.OTHER_SPLIT: Row(
        "{count} of {total:parameter} {count:|differs/differ} before the step ({names} first), "
        "parts taken as plain chunks: load the same values, or say how they are split: "
        "{annotation}",
        badge="other split of parameters",
        hint="check how the parameter is cut over ranks",
    ),
    Reason.OTHER_BY_THEN: Row(
        "{count} of {total} parameters and states {count:|differs/differ} before the first "
        "recorded step: what made them so lies in steps that were not recorded (--skip)",
        badge="other state before the first recorded step",
        hint="check what earlier steps do: record from the first one",
    ),
    Reason.GATHERED_PARAMETER: Row(
        "its last update passes; at the start of this step, {slots} does not: {why}",
        badge="stale or wrongly gathered parameters",
        hint="look for an all-gather of updated parameters that is not made, or comes too early",
    ),
    Reason.OTHER_DATA: Row(
        "the candidate was given other data than the reference (input {slots}): {why}",
        badge="other data",
        hint="check the sampler, its seed, and which samples each rank takes",
    ),
    Reason.FIRST_WRONG_OUTPUT: Row("its output is the first wrong tensor: {why}"),
    Reason.INPUT_FOR_CHILD: Row("the input it makes for {module} is the first wrong tensor: {why}"),
    Reason.LOSS_ALONE: Row("every module output passes, the loss does not: {why}"),
    Reason.GRADIENT_OF_INPUT: Row("the gradient of its input is the first wrong: {why}"),
    Reason.GRADIENT_PASSED_BACK: Row(
        "the gradient it passes back to {module} is the first wrong: {why}"
    ),
    Reason.GRADIENT_OF_MODEL_OUTPUT: Row(
        "the gradient of the model's output is the first wrong: {why}"
    ),
    Reason.LOCAL_GRADIENT: Row("activations and their gradients pass, {slots} does not: {why}"),
    Reason.ALL_LOCAL_GRADIENTS: Row(
        "activations and their gradients pass, {count} of {total:local gradient} of parameters "
        "{count:|does/do} not"
    ),
    Reason.GIVEN_REFERENCE_VALUES: Row(
        "given the reference's values, {tensor} is wrong: {why}{more}"
    ),
    Reason.CUT_OFF_FROM_AUTOGRAD: Row(
        "the reference has a {tensor}, the candidate has none: a tensor was cut off from autograd "
        "(detach, no_grad, data), and {count:gradient is/gradients are} never made",
        badge="cut off from autograd",
        hint="look for detach(), .data, no_grad(), or a collective without a backward",
    ),
    Reason.ACCUMULATED_GRADIENT: Row(
        "its local gradient passes, accumulated, {slots} does not: {why}"
    ),
    Reason.ALL_ACCUMULATED_GRADIENTS: Row(
        "local gradients pass, {count} of {total:sum of them that is/sums of them that are} given "
        "to the reduction {count:|does/do} not: {why}"
    ),
    Reason.REDUCED_GRADIENT: Row("its local gradient passes, reduced, {slots} does not: {why}"),
    Reason.DATA_PARALLEL_GRADIENT: Row(
        "its local gradient passes, reduced over data-parallel ranks, {slots} does not: {why}"
    ),
    Reason.FINALISED_GRADIENT: Row(
        "reduced over data-parallel ranks it passes, finalised (summed over tensor-parallel ranks "
        "and stages, divided by tokens), {slots} does not: {why}"
    ),
    Reason.UNSEEN_LOCAL_GRADIENT: Row(
        "activations and their gradients pass, {slots} does not: {why}"
    ),
    Reason.COMMON_FACTOR: Row(
        "all {gradients} are {factor:.4g} times the reference's ({count} of {total}) while "
        "activation gradients pass",
        badge="wrong factor ({factor:.3g}x)",
        hint="look for a division by ranks, microbatches or tokens that is missing or made twice",
    ),
    Reason.REPLICAS_DISAGREE: Row(
        "replicas of the {gradients} disagree ({count} of {total}) while activation gradients pass",
        badge="missing reduction{over}",
        hint="look for a gradient reduction that is not made, or is made over another group",
    ),
    Reason.ROUNDED_LOWER: Row(
        "{gradients} were rounded to a lower precision ({count} of {total}) while activation "
        "gradients pass",
        badge="rounded to a lower precision",
        hint="check the dtype in which gradients are reduced",
    ),
    Reason.NO_COMMON_FACTOR: Row(
        "{gradients} differ without a common factor ({count} of {total}) while activation "
        "gradients pass"
    ),
    Reason.NOT_THE_NORM: Row(
        "it is not the norm of the main gradients: {why}",
        badge="wrong gradient norm",
        hint="check whether the norm is summed over all ranks that hold a part, and each parameter "
        "is counted once",
    ),
    Reason.CLIPPED_GRADIENTS: Row(
        "main gradients and their norm pass, {count} of {total:clipped gradient} {count:|does/do} "
        "not: {why}",
        badge="wrong clipping",
        hint="check the norm to clip to, and which parameters are clipped",
    ),
    Reason.CLIPS_ALONE: Row(
        "the candidate clips its gradients, the reference does not",
        badge="clips alone",
        hint="look for gradient clipping that is on in one of both runs",
    ),
    Reason.OPTIMIZER_STATE: Row(
        "the gradients it was given pass, {count} of {total:tensor} of its state {count:|does/do} "
        "not: {why}"
    ),
    Reason.STATE_OF_UNSEEN_GRADIENTS: Row(
        "{count} of {total:tensor} of its state {count:|is/are} wrong: {why}; the gradients it was "
        "given were not seen"
    ),
    Reason.NO_STATE: Row(
        "it has no state for {count:parameter} that the reference's has: does it step on the "
        "parameters that the model uses?",
        badge="optimizer has other parameters",
        hint="look for an optimizer that was made before the model was wrapped, or moved",
    ),
    Reason.NOT_LEFT_OUT_BY_ALL: Row(
        "{count} of {total:new parameter} {count:|is/are} of a step that not everybody made: {why}"
    ),
    Reason.NEW_PARAMETER: Row("its main gradient passes, {slots} does not: {why}"),
    Reason.ALL_NEW_PARAMETERS: Row(
        "main gradients pass, {count} of {total:new parameter} {count:|does/do} not: {why}"
    ),
    Reason.PARAMETERS_OF_UNSEEN_GRADIENTS: Row(
        "{count} of {total:new parameter} {count:|is/are} wrong: {why}; the gradients that made "
        "them were not seen"
    ),
    Reason.PARAMETERS_BUT_NOT_COPIES: Row(
        "the optimizer's copies in full precision pass, {count} of {total:new parameter} "
        "{count:|does/do} not: {why}",
        badge="parameters not copied back",
        hint="check the copy from the full-precision parameters after the step",
    ),
    Reason.BUFFER: Row("everything else passes, {slots} does not: {why}"),
}

MISTAKES = {
    Mistake.ALL_ZERO: Row(
        "it is all zero: never computed, or never received",
        badge="all zero",
        hint="look for a buffer that is never filled, a receive or gather that is not made, or a "
        "branch that is skipped",
    ),
    Mistake.NOT_UPDATED: Row(
        "it equals its value before the step: it was not updated",
        badge="not updated",
        hint="look for an optimizer that does not hold this parameter, a step that is skipped, or "
        "a copy that is not made after it",
    ),
    Mistake.MISSING_ALL_REDUCE: Row(
        "each rank holds a part and their sum equals the reference: an all-reduce is missing",
        badge="missing all-reduce{over}",
        hint="look for an all-reduce or reduce-scatter that is not called here, is called over "
        "another group, or a partial sum that is declared whole",
    ),
    Mistake.MISSING_AVERAGE: Row(
        "ranks disagree and their mean equals the reference: an average is missing",
        badge="missing average{over}",
        hint="look for an averaging all-reduce that is not called here, or is called over another "
        "group",
    ),
    Mistake.PARTS_EXCHANGED: Row(
        "parts {moved} of {parts} of dim {dim} are exchanged",
        badge="parts exchanged",
        hint="check the order of ranks in the group, and of parts in a fused weight (gate and up; "
        "query, key and value)",
    ),
    Mistake.PARTS_IN_OTHER_ORDER: Row(
        "the {parts} parts of dim {dim} stand in another order: {order}",
        badge="parts in another order",
        hint="check the order in which shards are gathered or sent, and of parts in a fused weight",
    ),
    Mistake.TRANSPOSED: Row(
        "dims {dims} are exchanged: it is transposed",
        badge="transposed",
        hint="look for a transpose that is missing or made twice",
    ),
    Mistake.ONE_PLACE_LATER: Row(
        "it is the reference one place later along dim {dim}",
        badge="shifted by one place",
        hint="look for an offset of positions, labels or schedules by one",
    ),
    Mistake.ONE_PLACE_EARLIER: Row(
        "it is the reference one place earlier along dim {dim}",
        badge="shifted by one place",
        hint="look for an offset of positions, labels or schedules by one",
    ),
    Mistake.OPPOSITE_SIGN: Row(
        "its sign is the opposite",
        badge="opposite sign",
        hint="look for a minus sign, or the order of a difference",
    ),
    Mistake.SUM_FOR_MEAN: Row(
        "{size} times the reference, and {size} is {sizes}: a sum where a mean is due",
        badge="sum instead of mean{over}",
        hint="look for a sum over the group where its mean is due: ReduceOp.SUM, or a division by "
        "its size that is missing",
    ),
    Mistake.DIVIDED_TOO_OFTEN: Row(
        "1/{size} of the reference, and {size} is {sizes}: divided once too often",
        badge="divided once too often{over}",
        hint="look for a division by the group's size that is made twice: in the loss and in the "
        "reduction, for example",
    ),
    Mistake.FACTOR_OF_EACH_PART: Row(
        "every part is the reference's times a factor of its own: {factors}",
        badge="another factor on each rank",
        hint="look for a number that every rank computes from what it has alone: a count of "
        "tokens, a norm, a scale",
    ),
    Mistake.SAME_VECTOR_IN_EVERY_ROW: Row(
        "every row is off by the same vector: a bias is added too often, or not at all",
        badge="bias added too often or not at all",
        hint="look for a bias that every rank adds before a sum, or that none adds",
    ),
    Mistake.ROUNDED_LOWER: Row(
        "every value is one of {dtype}, and should not be: it was rounded to that",
        badge="rounded to {dtype}",
        hint="look for a cast, an autocast region, or a dtype of communication",
    ),
    Mistake.NOT_QUANTISED: Row(
        "the reference is quantised to {reference_dtype} here, this is not",
        badge="not quantised to {reference_dtype}",
        hint="look for a layer that is left out of the recipe, or a quantiser that is off here",
    ),
    Mistake.WRONG_SCALE: Row(
        "its codes are the reference's, its scales over the reference's are on average {factors}: "
        "a wrong scale, or values that were off by that before",
        badge="wrong scale of codes",
        hint="check which scale is handed on with the codes (its own, not that of the other "
        "operand, nor its inverse), and the factor of what is quantised",
    ),
    Mistake.WRONG_CODES: Row(
        "its scales are the reference's, its codes are not: what was quantised is wrong, or its "
        "cast",
        badge="wrong codes",
        hint="check the cast (does it saturate, how does it round), and what is cast",
    ),
    Mistake.OTHER_SCALE: Row(
        "it is right by its own grid, under scales that over the reference's are on average "
        "{factors}: the amax is of other values, of another step or another group",
        badge="quantised under another scale",
        hint="check of what the amax is taken, over which group it is reduced, and how a history "
        "of it is advanced",
    ),
    Mistake.STALE_SCALE: Row(
        "it is right by its own grid, under the scales of the step before, which over the "
        "reference's are on average {factors}",
        badge="quantised under a stale scale",
        hint="check whether the amax history is advanced in every step, and when its scale is "
        "computed",
    ),
    Mistake.SCALE_OF_EACH_PART: Row(
        "ranks have scales of their own where the reference has one, and over that they are "
        "{factors}: the amax is not reduced",
        badge="amax not reduced{over}",
        hint="look for an all-reduce of the amax that is not made; where a recipe wants a scale "
        "for each rank, quantise the reference in the same blocks",
    ),
    Mistake.OTHER_CODES: Row(
        "it is quantised to {dtype}, the reference to {reference_dtype}",
        badge="quantised to {dtype}",
        hint="check which format the recipe has for this tensor: forward and backward may have "
        "different ones",
    ),
    Mistake.OTHER_BLOCKS: Row(
        "it is right by its own grid, whose scales are of other blocks than the reference's",
        badge="scales of other blocks",
        hint="check the granularity of the recipe, and along which dim blocks lie",
    ),
    Mistake.ONE_TERM_OF_A_SUM: Row(
        "about 1/{size} of the reference, beside an error as large as the other terms would be: it "
        "is like one of {size} terms of a sum over {axes}",
        badge="one term of a sum{over}",
        hint="look for an all-reduce or reduce-scatter that is not made, or a partial sum that is "
        "declared whole",
    ),
}

EXPECTED = {
    Expected.DROPOUT: Row(
        "expected of dropout where each rank draws a mask of its own: compare with p=0 or eval(), "
        "or draw masks by their place in the whole tensor (ttrace.dropout_mask)",
        badge="dropout of each rank",
    ),
    Expected.BATCH_STATISTICS: Row(
        "expected in training, where statistics are of the part of the batch that a rank has: "
        "compare with torch.nn.SyncBatchNorm or eval(), or accept it",
        badge="batch statistics of each rank",
    ),
    Expected.AUXILIARY_LOSS: Row(
        "expected of an auxiliary loss that each rank computes from its own tokens: compute it "
        "over all of them, or accept it",
        badge="auxiliary loss of each rank",
    ),
    Expected.COMPRESSED_REDUCTION: Row(
        "expected where gradients are compressed before they are summed (a bf16 or fp16 "
        "communication hook): compare without it, or accept it",
        badge="compressed reduction",
    ),
}
