"""Blame: where in the model and when in the step something is itself wrong, as types.

    Blame.of("layers.1.feed_forward", phase=Phase.BACKWARD) a module
    Blame.of("a", "b", phase=Phase.BACKWARD)                one of several: nothing tells which
    Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT) no module: a stage of the step

Programs switch on these; the words for people are made from them in report/words.py.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

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
