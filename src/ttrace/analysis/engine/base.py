"""What an engine is asked to do: jobs, which are plain data, and the place where one runs.

    class Threads(Engine):
        def map(self, jobs, here):
            with ThreadPoolExecutor(4) as pool:
                yield from enumerate(pool.map(run_alone, jobs))

Tensors never travel: a job names its traces, and whoever runs it opens them. Results come in any
order, each with the number of its job.

A message costs time, and so does a worker that waits for the last of the others. So jobs travel in
batches of about the same cost, a small part of what a worker has to do; jobs that are larger than
that are batches of their own and go first. Of several errors the one counts that comes first in the
order of jobs: it is the one that a single process would have met.
"""

from __future__ import annotations

import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, NamedTuple, Protocol, Self, TypeVar

import torch

from ttrace.errors import TTraceError
from ttrace.trace.spans import SpanReader
from ttrace.trace.store import PathOrUrl

_T = TypeVar("_T")
_T_co = TypeVar("_T_co", covariant=True)
# Chosen: a job reads two traces, and a reader has at most 192 open files of the usual 1024.
_OPEN_TRACES = 4


class Job(Protocol[_T_co]):
    """One piece of work. It can be pickled, and what comes of it can be, too."""

    @property
    def cost(self) -> int:
        """In bytes that are read in the same time."""

    @property
    def name(self) -> str:
        """The tensor that it is about."""

    def run(self, place: Workplace) -> _T_co:
        """Do it; the same bits come of it everywhere."""


class Workplace:
    """Where jobs run, in one thread: traces that they ask for stay open.

    It closes those that it opened itself, and not what it is given.
    """

    def __init__(self, *readers: SpanReader) -> None:
        self._given = {reader.path: reader for reader in readers}
        self._opened: dict[PathOrUrl, SpanReader] = {}
        self._instruments: dict[object, Any] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def run(self, job: Job[_T]) -> _T:
        return job.run(self)

    def instrument(self, make: Callable[..., _T], *traces: PathOrUrl) -> _T:
        """What `make` makes of readers of these traces, once for all jobs: it may keep memory."""
        key = (make, traces)
        if key not in self._instruments:
            known = self._given.keys() | self._opened.keys()
            if len(set(traces) - known) + len(self._opened) > _OPEN_TRACES:
                self._close()
            self._instruments[key] = make(*map(self._reader, traces))
        found: _T = self._instruments[key]
        return found

    def _reader(self, trace: PathOrUrl) -> SpanReader:
        if trace in self._given:
            return self._given[trace]
        if trace not in self._opened:
            self._opened[trace] = SpanReader(trace)
        return self._opened[trace]

    def _close(self) -> None:
        self._instruments.clear()
        while self._opened:
            self._opened.popitem()[1].close()


class Engine(ABC):
    """Runs jobs. It is entered when a check begins and left when it ends; several may follow."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # An engine that has nothing to close is the usual one.
    def close(self) -> None:  # noqa: B027
        """End what was started for a check."""

    @abstractmethod
    def map(self, jobs: Sequence[Job[_T]], here: Workplace) -> Iterator[tuple[int, _T]]:
        """The number of every job once, and what came of it. `here` runs jobs in this thread."""


class Serial(Engine):
    """One job after the other, in this process."""

    def map(self, jobs: Sequence[Job[_T]], here: Workplace) -> Iterator[tuple[int, _T]]:
        for number, job in enumerate(jobs):
            yield number, here.run(job)


def run_alone(job: Job[_T]) -> _T:
    """For who has no place that stays: traces are opened for this job, and closed."""
    with Workplace() as place:
        return place.run(job)


@contextmanager
def one_thread() -> Iterator[None]:
    """Torch adds in other groups with more threads: with one, all places find the same bits.

    Measured on two cores, in CPU time: whole tensors take as long with one thread as with two,
    shards a sixth, since two threads wait for each other.
    """
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(threads)


_BATCHES = 64  # chosen, of each worker: at the end it waits for a 64th of its work at most
_LEAST = 64 << 20  # chosen: takes about 20 ms, a message less than one
_PORTABLE = ("builtins",)  # whose exceptions survive the way; of others their text does
JobBatch = list[tuple[int, Job[Any]]]  # with their numbers


class JobOutcome(NamedTuple):
    """What came of the job with this number: a result, or an error."""

    number: int
    result: Any
    error: Exception | None = None


def batches_of(jobs: Sequence[Job[Any]], workers: int) -> list[JobBatch]:
    """All jobs, large ones first and alone, then the others in their order."""
    costs = [job.cost for job in jobs]
    most = max(_LEAST, sum(costs) // (_BATCHES * workers))
    large = sorted((n for n, cost in enumerate(costs) if cost >= most), key=lambda n: -costs[n])
    batches: list[JobBatch] = [[(number, jobs[number])] for number in large]
    batch: JobBatch = []
    filled = 0
    for number, (job, cost) in enumerate(zip(jobs, costs, strict=True)):
        if cost >= most:
            continue
        if batch and filled + cost > most:
            batches.append(batch)
            batch, filled = [], 0
        batch.append((number, job))
        filled += cost
    return [*batches, batch] if batch else batches


def run_batch(batch: JobBatch, place: Workplace) -> list[JobOutcome]:
    """What came of each of its jobs, also of those after an error: one may be the first of all."""
    return [_outcome(number, job, place) for number, job in batch]


def _outcome(number: int, job: Job[Any], place: Workplace) -> JobOutcome:
    try:
        return JobOutcome(number, place.run(job))
    except (TTraceError, OSError) as error:
        return JobOutcome(number, None, error)
    except Exception as error:  # noqa: BLE001  (it is raised where the check runs)
        told = error if type(error).__module__ in _PORTABLE else RuntimeError(repr(error))
        told.add_note("".join(traceback.format_exception(error)))
        return JobOutcome(number, None, told)


class FirstError:
    """The error of the first job that has one, and what need not be done for it any more."""

    def __init__(self) -> None:
        self._found: JobOutcome | None = None

    def results(self, outcomes: Sequence[JobOutcome]) -> Iterator[tuple[int, Any]]:
        """Those without an error."""
        for outcome in outcomes:
            if outcome.error is None:
                yield outcome.number, outcome.result
            elif self._found is None or outcome.number < self._found.number:
                self._found = outcome

    def is_needed(self, batch: JobBatch) -> bool:
        """Whether one of its jobs comes before the error."""
        return self._found is None or any(number < self._found.number for number, _ in batch)

    def reraise(self) -> None:
        if self._found is not None and self._found.error is not None:
            raise self._found.error
