"""Terms: what the words of a report mean, for whoever meets them first."""

from __future__ import annotations

from ttrace.core.ids import Kind
from ttrace.core.readings import Statistic
from ttrace.core.results import Verdict

STATISTIC_TERMS = {
    Statistic.NORM: "the size of the whole error: the root of the sum of its squares",
    Statistic.ROW: "the error of one row: every dim fixed but the last",
    Statistic.SLICE: "the error where one dim is fixed: a channel, a head, a token",
    Statistic.ELEMENT: "the error of one element",
    Statistic.GAIN: "the part of the error along the reference: by what factor it is too large",
    Statistic.SHIFT: "the mean error: by what constant all elements are off",
    Statistic.GRAIN: "the bits of mantissa that only one of the runs uses",
    Statistic.COINCIDENCE: "how alike parts on different ranks were rounded, 1 if always",
    Statistic.CHOICES: "how many whole numbers differ",
}

VERDICT_TERMS = {
    Verdict.PASS: "no further from the reference than rounding explains",
    Verdict.MISMATCH: "further from the reference than rounding explains",
    Verdict.BORDERLINE: "a little further than allowed, and right when its module gets the "
    "reference's values",
    Verdict.HARMLESS: "other inside a module, and everything that leaves there is right",
    Verdict.CONFLICT: "ranks that should hold the same hold different values",
    Verdict.INCOMPLETE: "a part of it is held by no rank",
    Verdict.MISSING: "the reference has it, the candidate does not",
    Verdict.EXTRA: "the candidate has it, the reference does not",
    Verdict.NONFINITE: "NaN or Inf where the reference has none",
    Verdict.SHAPE: "its pieces do not make up the reference's shape",
    Verdict.UNDECIDED: "nothing says how much rounding explains here",
    Verdict.ACCEPTED: "it fails, and the accept list allows it",
}

KIND_TERMS = {
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
    Kind.PARAM: "a parameter before the step",
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
