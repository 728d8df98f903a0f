"""Words for the kinds of mistakes that a wrong tensor may look like."""

from __future__ import annotations

from ttrace.core.blame import Mistake

MISTAKES = {
    Mistake.ALL_ZERO: "it is all zero: never computed, or never received",
    Mistake.NOT_UPDATED: "it equals its value before the step: it was not updated",
    Mistake.MISSING_ALL_REDUCE: "each rank holds a part and their sum equals the reference: an "
    "all-reduce is missing",
    Mistake.MISSING_AVERAGE: "ranks disagree and their mean equals the reference: an average is "
    "missing",
    Mistake.PARTS_EXCHANGED: "parts {moved} of {parts} of dim {dim} are exchanged",
    Mistake.PARTS_IN_OTHER_ORDER: "the {parts} parts of dim {dim} stand in another order: {order}",
    Mistake.TRANSPOSED: "dims {dims} are exchanged: it is transposed",
    Mistake.ONE_PLACE_LATER: "it is the reference one place later along dim {dim}",
    Mistake.ONE_PLACE_EARLIER: "it is the reference one place earlier along dim {dim}",
    Mistake.OPPOSITE_SIGN: "its sign is the opposite",
    Mistake.SUM_FOR_MEAN: "{size} times the reference, and {size} is {sizes}: a sum where a mean "
    "is due",
    Mistake.DIVIDED_TOO_OFTEN: "1/{size} of the reference, and {size} is {sizes}: divided once too "
    "often",
    Mistake.FACTOR_OF_EACH_PART: "every part is the reference's times a factor of its own: "
    "{factors}",
    Mistake.SAME_VECTOR_IN_EVERY_ROW: "every row is off by the same vector: a bias is added too "
    "often, or not at all",
    Mistake.ROUNDED_LOWER: "every value is one of {dtype}, and should not be: it was rounded to "
    "that",
    Mistake.NOT_QUANTISED: "the reference is quantised to {reference_dtype} here, this is not",
    Mistake.WRONG_SCALE: "its codes are the reference's, its scales over the reference's are on "
    "average {factors}: a wrong scale, or values that were off by that before",
    Mistake.WRONG_CODES: "its scales are the reference's, its codes are not: what was quantised is "
    "wrong, or its cast",
    Mistake.OTHER_SCALE: "it is right by its own grid, under scales that over the reference's are "
    "on average {factors}: the amax is of other values, of another step or another group",
    Mistake.STALE_SCALE: "it is right by its own grid, under the scales of the step before, which "
    "over the reference's are on average {factors}",
    Mistake.SCALE_OF_EACH_PART: "ranks have scales of their own where the reference has one, and "
    "over that they are {factors}: the amax is not reduced",
    Mistake.OTHER_CODES: "it is quantised to {dtype}, the reference to {reference_dtype}",
    Mistake.OTHER_BLOCKS: "it is right by its own grid, whose scales are of other blocks than the "
    "reference's",
    Mistake.ONE_TERM_OF_A_SUM: "about 1/{size} of the reference, beside an error as large as "
    "the other terms would be: it is like one of {size} terms of a sum over {axes}",
}
