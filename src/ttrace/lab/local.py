"""The executor of this machine: commands in processes, functions in a pool of workers."""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.lab.functions import WorkerPool, run_function, shared_pool
from ttrace.lab.launch import run_command
from ttrace.lab.run import Function, TracedRun


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs both kinds of work; functions in the given pool, or in one that the process shares."""

    pool: WorkerPool | None = None

    def __call__(self, run: TracedRun) -> None:
        if isinstance(run.work, Function):
            run_function(run, run.work, self.pool or shared_pool())
        else:
            run_command(run, run.work)
