"""Coverage: what of a training step was seen and judged, and what was not.

    Covered(part=StepPart.FORWARD, judged=120, expected=120)    whole
    Covered(part=StepPart.UPDATE, judged=0, expected=31)        of 31 gradients no update was seen
    Lost.RECORDING                                              something could not be recorded

A part that neither run did, such as the update of a step that makes none, narrows a verdict. What
was expected and lost leaves it open.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum

from ttrace.core.ids import MASTER, Kind, TensorId


class StepPart(StrEnum):
    """What a training step is made of, in its order."""

    FORWARD = "forward"
    BACKWARD = "backward"
    REDUCTION = "reduction"  # of the parameters' gradients, over microbatches and ranks
    UPDATE = "update"

    @classmethod
    def shown_by(cls, kind: Kind) -> StepPart | None:
        """The part of which a tensor of this kind is a result; none of what a step starts from."""
        return _SHOWN_BY.get(kind)


_SHOWN_BY = {
    Kind.OUTPUT: StepPart.FORWARD,
    Kind.LOSS: StepPart.FORWARD,
    Kind.GRAD_OUTPUT: StepPart.BACKWARD,
    Kind.GRAD_INPUT: StepPart.BACKWARD,
    Kind.GRAD: StepPart.BACKWARD,
    Kind.REDUCED_GRAD: StepPart.REDUCTION,
    Kind.MAIN_GRAD: StepPart.REDUCTION,
    Kind.PARAM_AFTER: StepPart.UPDATE,
}


class Lost(StrEnum):
    """Why a comparison in which nothing fails decides nothing."""

    STEP = "step"  # no tensor that a step makes was compared
    REFERENCE = "reference"  # the candidate does a part that the reference does not
    RECORDING = "recording"  # something could not be recorded
    PROCESS = "process"  # something that was given to `attach` could not be traced at all


@dataclass(frozen=True, slots=True, kw_only=True)
class Covered:
    """How much of a part was judged: tensors of a pass, parameters of what happens to those."""

    part: StepPart
    judged: int
    expected: int

    @property
    def is_whole(self) -> bool:
        return 0 < self.expected <= self.judged


@dataclass(frozen=True, slots=True, kw_only=True)
class Coverage:
    """What was seen and what was not."""

    modules: int = 0
    never_called: tuple[str, ...] = ()
    hooks_expected: int = 0
    hooks_fired: int = 0
    unfired: tuple[str, ...] = ()
    faults: tuple[str, ...] = ()
    reference_faults: tuple[str, ...] = ()
    candidate_only: tuple[str, ...] = ()  # modules of both runs that the reference never called


def covered(judged: Iterable[TensorId]) -> tuple[Covered, ...]:
    """How much of every part these tensors are.

    Every parameter with a gradient is expected to have a reduced one, and an update.
    """
    found: dict[Kind, set[TensorId]] = {}
    for id_ in judged:
        found.setdefault(id_.kind, set()).add(id_)
    local, main = _parameters(found.get(Kind.GRAD, ())), _parameters(found.get(Kind.MAIN_GRAD, ()))
    updated = _parameters(found.get(Kind.PARAM_AFTER, ()))
    graded = local | main
    passes = {
        part: sum(len(ids) for kind, ids in found.items() if StepPart.shown_by(kind) is part)
        for part in (StepPart.FORWARD, StepPart.BACKWARD)
    }
    return (
        *(Covered(part=part, judged=count, expected=count) for part, count in passes.items()),
        Covered(part=StepPart.REDUCTION, judged=len(main), expected=len(graded)),
        Covered(
            part=StepPart.UPDATE,
            judged=len(updated & graded) if graded else len(updated),
            expected=len(graded or updated),
        ),
    )


def _parameters(ids: Iterable[TensorId]) -> set[tuple[int, str, str]]:
    return {(id_.step, id_.module, id_.slot.removesuffix(MASTER)) for id_ in ids}
