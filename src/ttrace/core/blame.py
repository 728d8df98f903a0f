"""Blame: where in the model and when in the step something is itself wrong, and why, as types.

    Blame.of("layers.1.feed_forward", phase=Phase.BACKWARD) a module
    Blame.of("a", "b", phase=Phase.BACKWARD)                one of several: nothing tells which
    Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT) no module: a stage of the step

Programs switch on these; the words for people are made from them in report/catalogue.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated

from ttrace.core.ids import TensorId
from ttrace.core.limits import AtMost, Between
from ttrace.core.record import Difference, Excerpt
from ttrace.errors import UsageError


class Stage(StrEnum):
    """What of a training step is not the code of one module."""

    MODEL_INPUT = "model_input"
    INITIAL_PARAMETERS = "initial_parameters"
    LOSS = "loss"
    BACKWARD = "backward"
    GRADIENT_ACCUMULATION = "gradient_accumulation"
    GRADIENT_REDUCTION = "gradient_reduction"
    GRADIENT_CLIPPING = "gradient_clipping"
    OPTIMIZER_STEP = "optimizer_step"


class Phase(StrEnum):
    """When in a step it goes wrong, in the order of a step."""

    MISSING = "missing"  # the candidate has nothing of the module
    PARAMETERS = "parameters"  # before the first step
    PARAMETER_GATHER = "parameter_gather"  # at the start of a later one
    INPUTS = "inputs"
    FORWARD = "forward"
    BACKWARD = "backward"
    WEIGHT_GRADIENT = "weight_gradient"
    GRADIENT_ACCUMULATION = "gradient_accumulation"
    GRADIENT_REDUCTION = "gradient_reduction"
    MAIN_GRADIENT = "main_gradient"
    GRADIENT_NORM = "gradient_norm"
    CLIP = "clip"
    STATE = "state"
    UPDATE = "update"
    BUFFER = "buffer"


class Reason(StrEnum):
    """Why a culprit is blamed: what the first tensor of its evidence is, and what still passes."""

    # before the forward pass
    NO_TENSOR_OF_IT = "no_tensor_of_it"
    OTHER_PARAMETERS = "other_parameters"
    OTHER_SPLIT = "other_split"
    OTHER_BY_THEN = "other_by_then"  # what steps that were not recorded left behind
    GATHERED_PARAMETER = "gathered_parameter"
    OTHER_DATA = "other_data"
    # the first wrong tensor
    FIRST_WRONG_OUTPUT = "first_wrong_output"
    INPUT_FOR_CHILD = "input_for_child"
    LOSS_ALONE = "loss_alone"
    GRADIENT_OF_INPUT = "gradient_of_input"
    GRADIENT_PASSED_BACK = "gradient_passed_back"
    GRADIENT_OF_MODEL_OUTPUT = "gradient_of_model_output"
    LOCAL_GRADIENT = "local_gradient"
    ALL_LOCAL_GRADIENTS = "all_local_gradients"
    # an isolated run
    GIVEN_REFERENCE_VALUES = "given_reference_values"
    CUT_OFF_FROM_AUTOGRAD = "cut_off_from_autograd"
    # accumulation and reduction of gradients
    ACCUMULATED_GRADIENT = "accumulated_gradient"
    ALL_ACCUMULATED_GRADIENTS = "all_accumulated_gradients"
    REDUCED_GRADIENT = "reduced_gradient"
    DATA_PARALLEL_GRADIENT = "data_parallel_gradient"  # summed over data-parallel ranks only
    FINALISED_GRADIENT = "finalised_gradient"  # after a sum over data-parallel ranks that passes
    UNSEEN_LOCAL_GRADIENT = "unseen_local_gradient"  # reduced, and the local one was not recorded
    COMMON_FACTOR = "common_factor"
    REPLICAS_DISAGREE = "replicas_disagree"
    ROUNDED_LOWER = "rounded_lower"
    NO_COMMON_FACTOR = "no_common_factor"
    # clipping, optimizer, buffers
    NOT_THE_NORM = "not_the_norm"
    CLIPPED_GRADIENTS = "clipped_gradients"
    CLIPS_ALONE = "clips_alone"
    OPTIMIZER_STATE = "optimizer_state"
    STATE_OF_UNSEEN_GRADIENTS = "state_of_unseen_gradients"
    NO_STATE = "no_state"
    NOT_LEFT_OUT_BY_ALL = "not_left_out_by_all"  # a step that others made, or did not
    NEW_PARAMETER = "new_parameter"
    ALL_NEW_PARAMETERS = "all_new_parameters"
    PARAMETERS_OF_UNSEEN_GRADIENTS = "parameters_of_unseen_gradients"
    PARAMETERS_BUT_NOT_COPIES = "parameters_but_not_copies"  # those in full precision pass
    BUFFER = "buffer"


class Mistake(StrEnum):
    """What kind of mistake a wrong tensor looks like: undoing it makes the tensor right."""

    ALL_ZERO = "all_zero"
    NOT_UPDATED = "not_updated"
    MISSING_ALL_REDUCE = "missing_all_reduce"
    MISSING_AVERAGE = "missing_average"
    PARTS_EXCHANGED = "parts_exchanged"
    PARTS_IN_OTHER_ORDER = "parts_in_other_order"
    TRANSPOSED = "transposed"
    ONE_PLACE_LATER = "one_place_later"
    ONE_PLACE_EARLIER = "one_place_earlier"
    OPPOSITE_SIGN = "opposite_sign"
    SUM_FOR_MEAN = "sum_for_mean"
    DIVIDED_TOO_OFTEN = "divided_too_often"
    FACTOR_OF_EACH_PART = "factor_of_each_part"
    SAME_VECTOR_IN_EVERY_ROW = "same_vector_in_every_row"
    ROUNDED_LOWER = "rounded_lower"
    NOT_QUANTISED = "not_quantised"
    WRONG_SCALE = "wrong_scale"  # of codes that are right
    WRONG_CODES = "wrong_codes"  # under scales that are right
    OTHER_SCALE = "other_scale"  # quantised under it, and right by its grid
    STALE_SCALE = "stale_scale"  # that of the step before
    SCALE_OF_EACH_PART = "scale_of_each_part"  # where the reference has one for all
    OTHER_CODES = "other_codes"  # of another format
    OTHER_BLOCKS = "other_blocks"
    ONE_TERM_OF_A_SUM = "one_term_of_a_sum"  # a likeness: it cannot be undone


class Expected(StrEnum):
    """A difference that a way of parallelising brings with it: a failure, maybe no mistake."""

    DROPOUT = "dropout"  # every rank draws its own mask
    BATCH_STATISTICS = "batch_statistics"  # of what one rank has of the batch
    AUXILIARY_LOSS = "auxiliary_loss"  # not linear in the tokens that one rank has
    COMPRESSED_REDUCTION = "compressed_reduction"  # gradients are summed in a lower precision


@dataclass(frozen=True, slots=True, kw_only=True)
class PartFactor:
    """What some ranks hold is the reference's times a factor."""

    ranks: tuple[int, ...]
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """A mistake, and what is known of it; fields that a mistake does not need stay empty.

    A kind of mistake from outside has a name of its own and brings its sentence with it.
    """

    mistake: Mistake | str
    dims: tuple[int, ...] = ()
    order: tuple[int, ...] = ()  # of parts: which part of the reference stands where
    size: int = 0  # by what it was multiplied or divided
    sizes: tuple[str, ...] = ()  # what has that size: a mesh axis, "ranks", "microbatches"
    factors: tuple[PartFactor, ...] = ()
    dtype: str = ""  # in which it was made
    reference_dtype: str = ""  # where that is known, too
    axes: tuple[str, ...] = ()  # of the mesh, along which it is
    sentence: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Nearest:
    """The kind of mistake that explains most of an error, where none explains all of it."""

    diagnosis: Diagnosis
    explained: Annotated[float, Between(0, 1)]  # share of the squared error


@dataclass(frozen=True, slots=True, kw_only=True)
class Blame:
    """Modules by their canonical paths (the root's is empty), or a stage, and the phase."""

    modules: tuple[str, ...] = ()
    stage: Stage | None = None
    phase: Phase

    def __post_init__(self) -> None:
        if bool(self.modules) == (self.stage is not None):
            raise UsageError(
                f"blame falls on modules or on a stage of the step, found modules "
                f"{list(self.modules)} and stage {self.stage}"
            )

    @classmethod
    def of(cls, *modules: str, phase: Phase) -> Blame:
        return cls(modules=modules, phase=phase)

    @classmethod
    def at(cls, stage: Stage, phase: Phase) -> Blame:
        return cls(stage=stage, phase=phase)


@dataclass(frozen=True, slots=True, kw_only=True)
class Culprit:
    """A root cause: who is blamed, why, and the wrong tensors that say so, the first one first.

    `count` of `total` tensors are wrong where a reason is about many; `steps` are those in which
    an isolated run found it.
    """

    blame: Blame
    reason: Reason
    evidence: tuple[TensorId, ...]
    count: int = 0
    total: int = 0
    factor: float | None = None
    steps: tuple[int, ...] = ()
    diagnosis: Diagnosis | None = None
    expected: Expected | None = None
    differences: tuple[Difference, ...] = ()  # hyperparameters of this place
    nearest: Nearest | None = None  # where no kind of mistake explains it all
    code: Annotated[tuple[Excerpt, ...], AtMost(2)] = ()  # one of the user's, one of others'
