"""The jobs of a check: measure a pair, verify what has no pair, look closely at a suspect.

They are what an engine gets (engine/base.py): plain data with the places of their traces, and all
that a stage needs to do its part elsewhere. People are told how far a check is by tasks, which are
jobs under one name, one task after the other in whatever order jobs end:

    comparing noise 1 of 2  17/1,054
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ttrace.analysis.compare import Comparator, Measured, Unit
from ttrace.analysis.diagnose.examine import Examiner
from ttrace.analysis.engine import Job, Workplace
from ttrace.core.evidence import Detail
from ttrace.core.form import AlikePieces
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.mesh import Mesh
from ttrace.core.results import TensorResult
from ttrace.trace.blocks import BlockReader
from ttrace.trace.store import PathOrUrl

# Measured on fingerprints, in bytes of full tensors that are read in the same time: 0.1 ms for a
# pair, and 24 us for each of its records.
_JOB_COST = 400_000
_RECORD_COST = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasureJob:
    """How far a pair of logical tensors is apart."""

    reference: PathOrUrl
    candidate: PathOrUrl
    unit: Unit

    @property
    def cost(self) -> int:
        return _JOB_COST + sum(map(_cost_of, (self.unit.reference, self.unit.candidate)))

    @property
    def name(self) -> str:
        return str(self.unit.id)

    def run(self, place: Workplace) -> Measured:
        comparator = place.instrument(Comparator, self.reference, self.candidate)
        return comparator.measure_unit(self.unit)


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyJob:
    """Raises CorruptTrace where bytes of a tensor that is not measured are not as written."""

    trace: PathOrUrl
    id: TensorId
    tensor: LogicalTensor
    is_reference: bool  # or of the run that is compared with it

    @property
    def cost(self) -> int:
        return _JOB_COST + _cost_of(self.tensor)

    @property
    def name(self) -> str:
        return str(self.id)

    def run(self, place: Workplace) -> None:
        place.instrument(BlockReader, self.trace).finish(self.tensor)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamineJob:
    """A closer look at a suspect: `before` is its value before the step, where it has one."""

    reference: PathOrUrl
    candidate: PathOrUrl
    result: TensorResult
    pair: tuple[LogicalTensor, LogicalTensor]
    scale: float
    before: LogicalTensor | None
    sizes: Mapping[str, int]
    mesh: Mesh

    @property
    def cost(self) -> int:
        return _JOB_COST + sum(map(_cost_of, self.pair))

    @property
    def name(self) -> str:
        return str(self.result.id)

    def run(self, place: Workplace) -> Detail:
        examiner = place.instrument(Examiner, self.reference, self.candidate)
        return examiner.examine(
            self.result,
            *self.pair,
            self.scale,
            before=self.before,
            sizes=self.sizes,
            mesh=self.mesh,
        )


def _cost_of(tensor: LogicalTensor) -> int:
    """Most replicas have the bytes of what they repeat, and are not read."""
    pieces, replicas = (AlikePieces.of(side).records for side in (tensor.pieces, tensor.replicas))
    read_bytes = int(pieces.sizes.clip(0).sum())
    return _RECORD_COST * (len(pieces) + len(replicas)) + read_bytes


Progress = Callable[[str, int, int], None]  # what, done, of how many
RunJobs = Callable[[Sequence[Job[Any]], str], list[Any]]  # what comes of each, under one name
_NONE = -1


class Task(NamedTuple):
    """A name for people, and what is to be done."""

    what: str
    jobs: Sequence[Job[Any]]


class TaskTelling:
    """How far tasks are: of the first that has not ended, from nothing to all of it."""

    def __init__(self, tasks: Sequence[Task], report: Progress) -> None:
        self._tasks = tasks
        self._report = report
        self._done: Counter[int] = Counter()
        self._left = deque(number for number, task in enumerate(tasks) if task.jobs)
        self._begin()

    def one_more(self, number: int) -> None:
        """A job of the task with this number has ended."""
        self._done[number] += 1
        while self._left and self._left[0] == number:
            task, done = self._tasks[number], self._done[number]
            self._report(task.what, done, len(task.jobs))
            if done < len(task.jobs):
                return
            self._left.popleft()
            number = self._begin()

    def _begin(self) -> int:
        """The next task, of which nothing was told; none where its jobs have not begun to end."""
        if not self._left:
            return _NONE
        task = self._tasks[self._left[0]]
        self._report(task.what, 0, len(task.jobs))
        return self._left[0] if self._done[self._left[0]] else _NONE
