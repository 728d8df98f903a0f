"""All that a check measures: one comparison after the other, by its engine or by its workers.

    noise 1 of 2, noise 2 of 2, repeated reference, candidate

Enters: traces. Leaves: each run as it was measured against the reference; or, from one of several
workers that share a check, the file with its part. Nothing is judged here.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Generic, TypeVar

from ttrace.analysis.align import Aligned, Aligner
from ttrace.analysis.comparison import Compared, RunComparison
from ttrace.analysis.engine import Engine, Job, Serial, Workplace, one_thread
from ttrace.analysis.engine.suitable import suitable_engine
from ttrace.analysis.part_file import StaticWorker, write_part
from ttrace.analysis.parts import Parts, share_done, share_of
from ttrace.analysis.sources import Source, Sources, comparable
from ttrace.analysis.tasks import Progress, Task, TaskTelling
from ttrace.core.ids import TensorId
from ttrace.core.scale import Scales
from ttrace.errors import UsageError
from ttrace.trace.plan import read_scales
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
        parts: Parts | None,
        isolated: Scales | None,
        samples_ranks: bool,
    ) -> None:
        self.sources = sources
        self.isolated = isolated
        self.samples_ranks = samples_ranks
        self.cells: Mapping[TensorId, InCells] = {}  # of the fingerprints of both runs
        self._engine = engine
        self._report = progress or (lambda *_: None)
        self._parts = parts
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
        return RunComparison.of(
            what,
            self.sources.reference,
            source,
            aligned,
            cells=self.cells,
            isolated=isolated,
            samples_ranks=self.samples_ranks,
        )

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
        if self._parts is not None:
            for source, comparison in self.comparisons():
                yield source, comparison.compared(self._parts.measured(comparison))
            return
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
    parts: Path | None = None,
    isolated: Scales | None = None,
    samples_ranks: bool = False,
) -> Iterator[Measuring]:
    """Traces are open, and workers there, until the end. With parts, there is little left to do."""
    found = None if parts is None else Parts(parts)
    if engine is None:
        others = [candidate, *perturbed, *([] if repeated is None else [repeated])]
        engine = Serial() if found else suitable_engine(reference, others)
    with one_thread(), engine, comparable(reference, candidate, perturbed, repeated) as sources:
        yield Measuring(
            sources,
            engine,
            progress=progress,
            parts=found,
            isolated=isolated,
            samples_ranks=samples_ranks,
        )


def measure_part(
    reference: PathOrUrl | str,
    candidate: PathOrUrl | str,
    *,
    worker: StaticWorker,
    parts: Path,
    plans: Path | None = None,
    perturbed: Sequence[PathOrUrl | str] = (),
    repeated: PathOrUrl | str | None = None,
    progress: Progress | None = None,
    engine: Engine | None = None,
    sample_ranks: bool = False,
) -> Path:
    """Measure what one of several workers has to; `check(..., parts=parts)` takes it from there.

    All are given the same traces; `plans` are those of an isolated candidate.
    """
    begun = measuring(
        reference,
        candidate,
        perturbed=perturbed,
        repeated=repeated,
        engine=engine,
        progress=progress,
        isolated=None if plans is None else read_scales(plans),
        samples_ranks=sample_ranks,
    )
    with begun as work:
        done = []
        for group in work.groups():
            shares = [(one, share_of(one.jobs, worker)) for _, one in group]
            mine = [Task(one.what, [one.jobs[n] for n in numbers]) for one, numbers in shares]
            results = work.run_all(mine)
            done += [
                share_done(one, numbers, found)
                for (one, numbers), found in zip(shares, results, strict=True)
            ]
        return write_part(parts, worker, done)
