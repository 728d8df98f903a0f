"""Batches: jobs that travel together, and how their results come back.

A message costs time, and so does a worker that waits for the last of the others. So batches have
about the same cost, a small part of what a worker has to do; jobs that are larger than that are
batches of their own and go first. Of several errors the one counts that comes first in the order of
jobs: it is the one that a single process would have met.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from ttrace.analysis.engine.base import Job, Workplace
from ttrace.errors import TTraceError

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
