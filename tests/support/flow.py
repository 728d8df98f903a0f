"""The whole flow in the worker pool: plain comparison and isolation of one training function."""

from dataclasses import dataclass
from pathlib import Path

from ttrace.core.results import CheckResult
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import TASK_SECONDS
from ttrace.lab.local import LocalExecutor
from ttrace.lab.run import Function
from zoo.workers import WorkerPool

__all__ = ["Flow", "Function", "compare_and_isolate"]


@dataclass(frozen=True, slots=True)
class Flow:
    """Both results of comparing `candidate` with `reference`."""

    plain: CheckResult
    isolated: CheckResult


def compare_and_isolate(
    reference: Function, candidate: Function, folder: Path, pool: WorkerPool, *, steps: int = 1
) -> Flow:
    experiment = Experiment(
        reference=reference,
        candidate=candidate,
        folder=folder,
        steps=steps,
        timeout_seconds=TASK_SECONDS,
        execute=LocalExecutor(pool),
    )
    plain = experiment.compare()
    return Flow(plain, experiment.isolate(candidate=Path(plain.candidate)))
