"""The whole flow in the worker pool: plain comparison and isolation of one training function."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ttrace.core.results import CheckResult
from ttrace.lab.experiment import Experiment
from ttrace.lab.launch import TracedRun
from zoo.workers import WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Side:
    """A function at the top level of its file, run on so many ranks."""

    train: Callable[..., None]
    ranks: int = 1
    arguments: tuple[Any, ...] = ()


@dataclass(frozen=True, slots=True)
class Flow:
    """Both results of comparing `candidate` with `reference`."""

    plain: CheckResult
    isolated: CheckResult


def compare_and_isolate(
    reference: Side, candidate: Side, folder: Path, pool: WorkerPool, *, steps: int = 1
) -> Flow:
    sides = {"reference": reference, "candidate": candidate}

    def run(traced: TracedRun) -> None:
        side = sides[str(traced.command)]
        pool.run(side.ranks, side.train, *side.arguments, environment=traced.variables)

    experiment = Experiment(
        reference="reference", candidate="candidate", folder=folder, steps=steps
    )
    plain = experiment.compare(run, lambda *_: None)
    return Flow(plain, experiment.isolate(run, lambda *_: None))
