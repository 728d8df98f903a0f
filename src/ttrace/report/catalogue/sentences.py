"""Sentences that belong to no member of an enum, and the pieces that others are made of."""

from __future__ import annotations

from enum import Enum, unique


@unique
class Line(Enum):
    """A sentence or a piece of one; its value is the template that is filled in."""

    EQUIVALENT = (
        "EQUIVALENT{parts}: all {compared:tensor} within tolerance ({equal} exactly equal, the "
        "largest error is {worst:.2f} of its tolerance)"
    )
    EQUIVALENT_BUT = (
        "EQUIVALENT{parts}: {within} of {compared:tensor} within tolerance, {others} ({equal} "
        "exactly equal)"
    )
    SOME_BORDERLINE = (
        "{count} borderline (up to {worst:.2f} of it) and right by {count:|itself/themselves}"
    )
    SOME_HARMLESS = "{count} different without an effect"
    SOME_ACCEPTED = "{count} accepted"
    NOT_EQUIVALENT = "NOT EQUIVALENT{strength}: {place}"
    STRENGTH = " ({strength}, {ratio} the tolerance)"
    NEARNESS = "largest error / tolerance by kind: {kinds}"
    UNDECIDED = "UNDECIDED: {count:tensor}, first {id}: {note}"
    FEWER_STEPS = (
        "UNDECIDED: {count} of {total:step} {count:|was/were} made; in {count:|it/these}, no "
        "tensor differs"
    )
    AND_MORE = " (and {count} more)"
    MORE_PLACES = "and {count:more place}"
    FOLLOW_ON = (
        "{failures:tensor} of {modules:module} {failures:|differs/differ}; the isolated run found "
        "{count:root cause}{rest}"
    )
    ISOLATED_ALONE = (
        "no tensor of the plain comparison fails, where rounding that grows from layer to layer "
        "hides it; the isolated run found {count:root cause}"
    )
    REST = ", the rest are follow-on errors"
    ROOT_CAUSE = "root cause: {place}: {reason}"
    WORST_PLACE = "worst place: {id}: {evidence}"
    ALLOWED = "allowed: error norm {norm:.3g} ({source})"
    REPORT = "report: {path}"
    RATIO = "{ratio} its tolerance"
    MUST_BE_EQUAL = "it must be equal, and {unequal} of {elements:element} {unequal:|is/are} not"
    EVIDENCE = "{what} is {ratio} what is allowed ({value:.3g} > {allowed:.3g})"
    ON_RANKS = "on {ranks}"
    TOKENS = "{moved:token} routed elsewhere"
    CANDIDATE_NOT_WHOLE = "but the candidate could not be recorded whole: {fault}"
    REFERENCE_NOT_WHOLE = "but the reference could not be recorded whole: {fault}"
    IN_STEPS = " (step {steps})"
    OTHER_NUMBER = "{name}{of} is {candidate}, the reference's {reference}{where}"
    COUNTS = "{verdicts}; tolerances from {runs:perturbed reference run}"
    NO_COUNTS = "nothing compared"
    WRONG = "{count} of {total:tensor} wrong"
    FIRST_WRONG = "{count} of {total:tensor} wrong; the first in execution order:"
    FIRST_UNDECIDED = "{count} of {total:tensor} undecided; the first in execution order:"
    SOME_UNDECIDED = "{count} of {total} undecided"
    HOOKS = "gradient hooks: {fired} of {expected} fired"
    CAPTURED = "everything was captured: every module was called, and {hooks}"
    ALL_HOOKS = "all {expected:gradient hook} fired"
    NO_HOOKS = "no gradient was expected"
    SAMPLED = (
        "wrong ranks and rows of {count:large tensor} were looked for in a sample, {least:.1%} of "
        "the elements or more"
    )
    UNFIRED = "no gradient reached"
    NEVER_CALLED = "never called"
    CANDIDATE_ONLY = "never called by the reference, only by the candidate"
    FAULTS = "could not be recorded"
    REFERENCE_FAULTS = "could not be recorded of the reference"
    AXIS = "the size of {name}"
    NUMBER = "the number of {name}"
    MAIN_GRADIENTS = "main gradients"
    REDUCED_GRADIENTS = "gradients reduced over data-parallel ranks"
    THE_STEP = "the step as a whole"
    LIKENESS = "nearest: {said}"
    NEAREST = "nearest, {share:.0%} of the squared error: {said}"
    IN_FUNCTION = "in {name} ({place})"
    EVERY_RANK = "every rank"
    REFERENCE_VALUE = "reference: {value:.6g}"
    VALUE = "{where}: {value:.6g}"
    ELEMENT = "element ({index}) is {candidate:.4g}, the reference's {reference:.4g}{where}"
    MORE_VALUES = "and {count} more"
    KIND_OF_FAILURE = "{verdict}, which rounding cannot make"
    EXPORT_IT = "take it to a notebook"
    REPEAT_IT = "repeat it"
    # how much a verdict covers
    IN_PARTS = " in {parts}"
    PART_OF_IT = (
        "only {judged} of {expected:gradient} of parameters {judged:|has/have} a recorded {part}"
    )
    CALLED_BY_CANDIDATE = "{count:module was/modules were} called by the candidate only"
    COVERED = "judged: {parts}"
    SOME = "{part} ({judged} of {expected})"
    ACCEPTED = "accepted: {count:tensor} by {id}: {reason}"
    BEYOND_BOUND = (
        "not accepted: {count:tensor} of {id} {count:|is/are} beyond its bound of {bound} "
        "{count:|its/their} tolerance"
    )
    ACCEPTS_NOTHING = "the accept list has {id}, and no failure is called so: {reason}"
    IS_ACCEPTED = "{count} of {total} accepted"
    SEVERAL = "{pattern} ({count:place}: {places})"
