"""A cluster of Ray: jobs run where it has cores, and read the traces from there.

`--engine ray` starts one on this machine unless RAY_ADDRESS names one; `--engine ray:ADDRESS` joins
that one, whose machines need ttrace and the traces at the same paths. Ray itself does a batch again
whose worker died.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from typing import Any, Self, TypeVar

from ttrace.analysis.engine.base import (
    Engine,
    FirstError,
    Job,
    JobBatch,
    JobOutcome,
    Workplace,
    batches_of,
    one_thread,
    run_batch,
)
from ttrace.errors import UsageError, WorkerLost

try:
    import ray
    import ray.exceptions
except ModuleNotFoundError as error:
    raise UsageError(
        f"the engine ray needs the package {error.name}, which is not installed here: "
        "`pip install 'ttrace[ray]'`"
    ) from error

_T = TypeVar("_T")
_RETRIES = 2  # chosen: as often as the engine of processes
_AHEAD = 2  # chosen: batches for each core, so that none waits for the next


class OnRay(Engine):
    """All cores of a cluster, or so many of them."""

    def __init__(self, workers: int | None = None, address: str = "") -> None:
        self._workers = workers
        self._address = address or os.environ.get("RAY_ADDRESS", "")
        self._is_mine = False

    def __enter__(self) -> Self:
        self._is_mine = not ray.is_initialized()
        if self._is_mine:
            _join(self._address, self._workers)
        return self

    def close(self) -> None:
        if self._is_mine:
            ray.shutdown()

    def map(self, jobs: Sequence[Job[_T]], here: Workplace) -> Iterator[tuple[int, _T]]:
        cores = self._workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        run = ray.remote(num_cpus=1, max_retries=_RETRIES)(_run)
        first = FirstError()
        waiting = iter(batches_of(jobs, cores))
        running: dict[Any, JobBatch] = {}
        try:
            while True:
                for batch in waiting:
                    if first.is_needed(batch):
                        running[run.remote(batch)] = batch
                    if len(running) >= _AHEAD * cores:
                        break
                if not running:
                    break
                (done, *_), _ = ray.wait(list(running), num_returns=1)
                yield from first.results(_got(done, running.pop(done)))
        finally:
            for unwanted in running:  # somebody else's cluster has other work to do
                ray.cancel(unwanted)
        first.reraise()


def _join(address: str, workers: int | None) -> None:
    """The cluster at this address, or a new one on this machine."""
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if address and address != "local":
        ray.init(address=address, **quiet)
        return
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would tell its maker of this run
    modules = os.pathsep.join(filter(None, sys.path))
    ray.init(
        address="local",
        num_cpus=workers,
        include_dashboard=False,
        runtime_env={"env_vars": {"PYTHONPATH": modules, "OMP_NUM_THREADS": "1"}},
        **quiet,
    )


def _got(answer: Any, batch: JobBatch) -> list[JobOutcome]:
    try:
        outcomes: list[JobOutcome] = ray.get(answer)
    except (ray.exceptions.WorkerCrashedError, ray.exceptions.OutOfMemoryError) as error:
        raise WorkerLost(
            f"{_RETRIES + 1} workers of Ray died one after the other while they read "
            f"{batch[0][1].name}: mostly there is no memory left; give Ray fewer cores, or check "
            "with `--workers 1` to see what happens"
        ) from error
    return outcomes


class _Here:
    """What a worker of Ray keeps between batches: open traces."""

    place: Workplace | None = None


def _run(batch: JobBatch) -> list[JobOutcome]:
    if _Here.place is None:
        _Here.place = Workplace()
    with one_thread():
        return run_batch(batch, _Here.place)
