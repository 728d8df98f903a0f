"""Findings: what is known of one tensor beside its verdict, and notes on a whole comparison.

    Finding.CONSTANT_FACTOR     the statistics say which
    Finding.REPLICAS_DISAGREE   Specifics(ranks=(1,), other_ranks=(0,), relative_error=0.3)
    Note(topic=Topic.LOSS_SCALE, factor=2.0)

Programs switch on the enums; the words for people are made from them in report/catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from ttrace.core.ids import TensorId
from ttrace.core.record import Difference


class Finding(StrEnum):
    """In what way a tensor is right or wrong, or why nothing can be said of it."""

    # passes
    EQUAL = "equal"
    REPLICAS_ROUNDED = "replicas_rounded"  # replicas differ, by no more than rounding
    OVERFLOWED = "overflowed"  # in both, which left the step out
    SAME_ROWS = "same_rows"  # numbers of rows that each rank counts by itself
    # mismatch: the worst judgement and the statistics say how much and where
    CONSTANT_FACTOR = "constant_factor"  # nearly all of the error is one
    FACTOR = "factor"  # what is left beside it is rounding
    AVERAGE_FACTOR = "average_factor"  # there is more beside it
    SHIFT = "shift"
    CHOICES = "choices"
    PLACE = "place"  # a row, slice or element
    NORM = "norm"
    TOKENS_MOVED = "tokens_moved"
    LOWER_PRECISION = "lower_precision"  # than the reference's, whatever it is stored in
    COARSER_THAN_TERMS = "coarser_than_terms"  # lower than that of the sum it should be
    NOT_QUANTISED = "not_quantised"  # as the reference is
    NO_CODES = "no_codes"  # made by its module, which makes some in the reference
    TAKEN_AS_CHUNKS = "taken_as_chunks"  # parts of a parameter that nobody says how it is split
    ROUNDED_ALIKE = "rounded_alike"  # parts on different ranks, by the same random numbers
    UPDATED_ALONE = "updated_alone"  # in a step that the reference left out
    # conflict, nonfinite
    UPDATED_BY_SOME = "updated_by_some"  # of its ranks; others made no step
    REPLICAS_DISAGREE = "replicas_disagree"
    RECOMPUTATION_DIFFERS = "recomputation_differs"
    NONFINITE = "nonfinite"
    OTHER_INFINITIES = "other_infinities"  # than those that the reference has on purpose
    # missing, extra, incomplete, shape; undecided where the run that lacks it had faults
    ONLY_IN_REFERENCE = "only_in_reference"
    ONLY_IN_CANDIDATE = "only_in_candidate"
    NO_RANK_HOLDS = "no_rank_holds"
    CANNOT_BE_ALIGNED = "cannot_be_aligned"
    # undecided
    NO_PLACE_KNOWN = "no_place_known"  # of the candidate's pieces in the whole
    REFERENCE_CANNOT_BE_ALIGNED = "reference_cannot_be_aligned"
    REFERENCE_LACKS = "reference_lacks"
    REFERENCE_NONFINITE = "reference_nonfinite"
    NO_YARDSTICK = "no_yardstick"
    CELLS_DO_NOT_FIT = "cells_do_not_fit"  # of the fingerprints of both runs


class Topic(StrEnum):
    """What a note is about."""

    RUN = "run"  # told by the run that was recorded
    YARDSTICK = "yardstick"  # told by a perturbed reference, of its noise
    OTHER_KERNELS = (
        "other_kernels"  # the runs computed on two kinds of devices, noise allows for it
    )
    NOISE_OF_ONE_DEVICE = "noise_of_one_device"  # the same, and noise does not
    # perturbed references that are no yardstick, and were left out
    OTHER_START = "other_start"  # from other parameters
    OTHER_CALLS = "other_calls"
    OTHER_INPUTS = "other_inputs"  # was given other data
    OTHER_UPDATES = "other_updates"  # of another size
    ALIGNMENT = "alignment"  # told by the alignment
    INFERRED_LAYOUTS = "inferred_layouts"
    FINGERPRINTS = "fingerprints"  # tensors of which no values were compared
    KEPT_TOGETHER = "kept_together"  # gradients that one run has only as part of others
    COVERING_RANKS = "covering_ranks"  # the bytes of these alone were read
    OTHER_REPLICAS = "other_replicas"  # on other ranks, which differ from what was read
    LOWER_PRECISION = "lower_precision"  # than the reference's, as was asked for or may be
    SCALES_OF_BLOCKS = "scales_of_blocks"  # the reference quantised in the candidate's blocks
    SCALES_OF_ALL = "scales_of_all"  # it could have, and is farther from the candidate then
    QUANTISED_AMONG_CALLS = "quantised_among_calls"  # where no call can be cut into blocks
    CODES_FLIP = "codes_flip"  # modules quantise, so that a plain pass says little
    OTHER_RECIPE = "other_recipe"  # modules that quantise in the reference alone, or otherwise
    LOSS_SCALE = "loss_scale"
    UNEQUAL_WEIGHTS = "unequal_weights"
    DETERMINISTIC = "deterministic"
    NOT_DETERMINISTIC = "not_deterministic"
    NO_ROOT_CAUSE = "no_root_cause"
    NO_EVIDENCE = "no_evidence"  # a run that would have told more did not end well
    COARSER = "coarser"  # an isolated run died, one that is given values at blocks alone did not
    MORE_RUNS = "more_runs"  # borderline at first: further perturbed runs were made
    RIGHT_BY_ITSELF = "right_by_itself"  # borderline, and decided by the isolated run
    HARMLESS = "harmless"  # modules that compute the same in another way inside
    REDUCED_ELSEWHERE = "reduced_elsewhere"  # gradients from which a step by hand does not update
    OTHER_NUMBER = "other_number"  # a hyperparameter differs, without effect
    FEWER_STEPS = "fewer_steps"  # than were asked for: nothing is said of the others
    DIED_AT_EXIT = "died_at_exit"  # a run that had recorded everything
    NOT_ATTACHED = "not_attached"  # something that a script gave to `attach` could not be traced
    BORDERLINE = "borderline"  # and only the traces at hand to decide by


@dataclass(frozen=True, slots=True, kw_only=True)
class Specifics:
    """What a finding needs that no statistic holds; the fields of others stay empty."""

    ranks: tuple[int, ...] = ()  # whose replica disagrees most
    other_ranks: tuple[int, ...] = ()  # with theirs
    relative_error: float = 0.0  # between them
    moved: int = 0  # tokens that a router sent elsewhere
    allowed_moves: float = 0.0  # as many as noise explains
    gaps: tuple[str, ...] = ()  # the first parts that nobody holds
    problem: str = ""  # why pieces do not fit together
    fault: str = ""  # why the run that lacks it was not recorded whole
    dtype: str = ""  # in which it was made
    reference_dtype: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """What one should know of the whole comparison."""

    topic: Topic
    text: str = ""  # of a run or of the alignment: as it was told
    count: int = 0
    total: int = 0
    first: TensorId | None = None
    factor: float | None = None
    gains: tuple[float, ...] = ()
    modules: tuple[str | None, ...] = ()  # None is the step
    difference: Difference | None = None
