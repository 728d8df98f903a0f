"""All that a check measures: one comparison after the other, by its engine.

    noise 1 of 2, noise 2 of 2, repeated reference, candidate

Enters: traces. Leaves: each run aligned with the reference, as jobs (pairs to measure, and tensors
without a pair to verify); then, with what came of them, the pairs as they were measured. Nothing is
judged here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar

from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.batch import splits_of
from ttrace.analysis.compare import (
    Comparator,
    LossScale,
    Measured,
    Unit,
    find_isolated_scale,
    find_loss_scale,
)
from ttrace.analysis.engine import Engine, Job, Workplace, one_thread
from ttrace.analysis.engine.capacity import suitable_engine
from ttrace.analysis.sources import Source, Sources, comparable
from ttrace.analysis.work import MeasureJob, Progress, Task, TaskTelling, VerifyJob
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor, Pair, as_terms
from ttrace.core.scale import Scales, declared_scale
from ttrace.core.statistics import Statistics
from ttrace.errors import UsageError
from ttrace.trace.sketches import InCells, cells_of
from ttrace.trace.store import PathOrUrl

_T = TypeVar("_T")
# Chosen: takes one process some ten seconds, beside which it is little that workers wait for the
# last of them; and what is known of so much fits into memory.
_GROUP_COST = 64 << 30


class Measuring:
    """What is compared, who measures it, and who is told how far it is."""

    def __init__(
        self,
        sources: Sources,
        engine: Engine,
        *,
        progress: Progress | None,
        isolated: Scales | None,
        samples_ranks: bool,
    ) -> None:
        self.sources = sources
        self.isolated = isolated
        self.samples_ranks = samples_ranks
        self.cells: Mapping[TensorId, InCells] = {}  # of the fingerprints of both runs
        self._engine = engine
        self._report = progress or (lambda *_: None)
        every = (sources.reference, sources.candidate, *sources.perturbed, *sources.repeated)
        self._here = Workplace(*(source.spans for source in every))

    def comparisons(self) -> Iterator[tuple[Source, RunComparison]]:
        """Every run with the reference, the candidate last."""
        sources, aligner = self.sources, Aligner(self.sources.reference)
        aligned = aligner.align(sources.candidate)  # first: its cells count for all
        self.cells = cells_of(aligned.pairs())
        total = len(sources.perturbed)
        named = [(s, f"noise {n} of {total}") for n, s in enumerate(sources.perturbed, start=1)]
        for source, what in [*named, *((source, source.role) for source in sources.repeated)]:
            yield source, self._comparison(what, source, aligner.align(source))
        candidate = sources.candidate
        yield candidate, self._comparison("candidate", candidate, aligned, self.isolated)

    def _comparison(
        self, what: str, source: Source, aligned: Aligned, isolated: Scales | None = None
    ) -> RunComparison:
        """A run as jobs: of pairs that are measured, and of tensors without a pair, verified."""
        reference = self.sources.reference
        scale = loss_scale(reference, source, aligned, isolated)
        traces = reference.spans.path, source.spans.path
        measure = []
        for id_, (expected, found) in aligned.pairs().items():
            may_be_terms = scale.may_be_terms(id_, expected)
            unit = Unit(
                id=id_,
                reference=self._read(expected),
                # What looks like replicas, and may be terms, is needed from all ranks.
                candidate=found if may_be_terms else self._read(found),
                scale=scale.factor_of(id_),
                may_be_terms=may_be_terms,
                cells=self.cells.get(id_),
            )
            measure.append(MeasureJob(reference=traces[0], candidate=traces[1], unit=unit))
        verify = [
            VerifyJob(trace=trace, id=one.id, tensor=self._read(tensor), is_reference=number == 0)
            for one in aligned.tensors
            if one.pair is None
            for number, (trace, tensor) in enumerate(
                zip(traces, (one.reference, one.candidate), strict=True)
            )
            if tensor is not None
        ]
        return RunComparison(
            what=what, aligned=aligned, scale=scale, measure=measure, verify=verify
        )

    def _read(self, tensor: LogicalTensor) -> LogicalTensor:
        """What is read of a tensor: of ranks that are sampled, the first that hold each part."""
        return replace(tensor, replicas=()) if self.samples_ranks and tensor.replicas else tensor

    def groups(self) -> Iterator[list[tuple[Source, RunComparison]]]:
        """The same; small ones together, for at the end of each group workers wait for the last."""
        group, cost = [], 0
        for source, comparison in self.comparisons():
            group.append((source, comparison))
            cost += sum(job.cost for job in comparison.jobs)
            if cost >= _GROUP_COST:
                yield group
                group, cost = [], 0
        if group:
            yield group

    def compared(self) -> Iterator[tuple[Source, Compared]]:
        """Every run as it was measured against the reference, the candidate last."""
        groups = self.groups()
        following = _Following(lambda: next(groups, None))
        following.prepare()
        while (group := following.take()) is not None:
            tasks = [Task(one.what, one.jobs) for _, one in group]
            results = self.run_all(tasks, meanwhile=following.prepare)
            for (source, comparison), found in zip(group, results, strict=True):
                yield source, comparison.compared(found[: len(comparison.measure)])

    def run(self, jobs: Sequence[Job[_T]], what: str) -> list[_T]:
        """What comes of jobs, in their order."""
        return self.run_all([Task(what, jobs)])[0]

    def run_all(
        self, tasks: Sequence[Task], meanwhile: Callable[[], None] = lambda: None
    ) -> list[list[Any]]:
        """What comes of the jobs of each, in their order; people are told how far they are.

        `meanwhile` is called once workers are busy.
        """
        # A task of jobs 0 and 1, and a task of job 2. They end in the order 2, 0, 1:
        #     told        noise 0/2, noise 1/2, noise 2/2, candidate 0/1, candidate 1/1
        #     returned    [[result 0, result 1], [result 2]]
        jobs = [job for task in tasks for job in task.jobs]
        owners = [owner for owner, task in enumerate(tasks) for _ in task.jobs]
        results: dict[int, Any] = {}
        telling = TaskTelling(tasks, self._report)
        for number, result in self._engine.map(jobs, self._here) if jobs else ():
            if not results:
                meanwhile()
            results[number] = result
            telling.one_more(owners[number])
        missing = [job.name for number, job in enumerate(jobs) if number not in results]
        if missing or len(results) > len(jobs):
            raise UsageError(
                f"the engine {type(self._engine).__name__} gave {len(results)} results of "
                f"{len(jobs)} jobs{f', none of {missing[0]}' if missing else ''}: it must give one "
                "of each, with its number"
            )
        following = (results[number] for number in range(len(jobs)))
        return [list(itertools.islice(following, len(task.jobs))) for task in tasks]


class _Following(Generic[_T]):
    """What comes next, prepared while workers are at what comes before it.

    What fails is raised when it is taken: whatever fails before that counts first.
    """

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._prepared: list[_T | Exception] = []

    def prepare(self) -> None:
        try:
            self._prepared.append(self._make())
        except Exception as error:  # noqa: BLE001  (it is raised when its turn comes)
            self._prepared.append(error)

    def take(self) -> _T:
        if not self._prepared:  # nobody was busy
            self.prepare()
        found = self._prepared.pop()
        if isinstance(found, Exception):
            raise found
        return found


@contextmanager
def measuring(
    reference: PathOrUrl | str,
    candidate: PathOrUrl | str,
    *,
    perturbed: Sequence[PathOrUrl | str] = (),
    repeated: PathOrUrl | str | None = None,
    engine: Engine | None = None,
    progress: Progress | None = None,
    isolated: Scales | None = None,
    samples_ranks: bool = False,
) -> Iterator[Measuring]:
    """Traces are open, and workers there, until the end."""
    if engine is None:
        others = [candidate, *perturbed, *([] if repeated is None else [repeated])]
        engine = suitable_engine(reference, others)
    with one_thread(), engine, comparable(reference, candidate, perturbed, repeated) as sources:
        yield Measuring(
            sources,
            engine,
            progress=progress,
            isolated=isolated,
            samples_ranks=samples_ranks,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class RunComparison:
    """What is to be measured of a run, and verified."""

    what: str  # for people: noise 1 of 2, repeated reference, candidate
    aligned: Aligned
    scale: LossScale
    measure: Sequence[MeasureJob]
    verify: Sequence[VerifyJob]

    @property
    def jobs(self) -> Sequence[MeasureJob | VerifyJob]:
        """Pairs first, as a single process would meet them."""
        return [*self.measure, *self.verify]

    def compared(self, measured: Sequence[Measured]) -> Compared:
        """With what was measured of every pair, in their order."""
        pairs: dict[TensorId, Pair] = {}
        for job, found in zip(self.measure, measured, strict=True):
            unit = job.unit
            terms = as_terms(unit.candidate) if found.as_terms else None
            pairs[unit.id] = (unit.reference, unit.candidate if terms is None else terms)
        return Compared(
            aligned=self.aligned,
            scale=self.scale,
            pairs=pairs,
            measured=dict(zip(pairs, measured, strict=True)),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Two traces measured against each other, and the pairs as they were measured."""

    aligned: Aligned
    pairs: Mapping[TensorId, Pair]
    measured: Mapping[TensorId, Measured]
    scale: LossScale

    def moved(self) -> dict[TensorId, int]:
        return {id_: found.moved for id_, found in self.measured.items() if found.moved}


def statistics_of(measured: Mapping[TensorId, Measured]) -> dict[TensorId, Statistics]:
    """Of what could be measured."""
    return {id_: found.statistics for id_, found in measured.items() if found.cells_fit}


def loss_scale(
    reference: Source, candidate: Source, aligned: Aligned, isolated: Scales | None = None
) -> LossScale:
    """By what the candidate's gradients are larger, before they are reduced."""
    comparator, pairs = Comparator(reference.spans, candidate.spans), aligned.pairs()
    if isolated is not None:
        return find_isolated_scale(comparator, pairs, isolated)
    return find_loss_scale(
        comparator,
        pairs,
        reference_splits=splits_of(aligned.reference_batches),
        candidate_splits=splits_of(aligned.candidate_batches),
        declared=declared_scale(reference.trace.loss_parts, candidate.trace.loss_parts),
    )
