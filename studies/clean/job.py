"""What a process of `python -m studies.clean` does: all cases of one reference, one by one."""

from __future__ import annotations

import shutil
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from studies.clean.check import Check, Versions, check_of, versions_here
from ttrace.lab.functions import WorkerPool
from ttrace.lab.run import Function
from zoo.clean.case import Case
from zoo.clean.layouts import LAYOUTS
from zoo.clean.train import train_rank
from zoo.trials import Trials
from zoo.workers import worker_pool

_OWN: list[WorkerPool] = []  # of this process: its ranks live as long as it does


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Cases that have one reference; none of them is begun after `until`."""

    cases: tuple[Case, ...]
    until: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What was found, and the errors that prevented the rest, by the key of the case."""

    checks: list[Check]
    errors: dict[str, str]


def tasks_of(cases: Iterable[Case], until: float) -> list[Task]:
    """In the order of their first cases."""
    shared: dict[Case, list[Case]] = {}
    for case in cases:
        shared.setdefault(case.reference, []).append(case)
    return [Task(cases=tuple(same), until=until) for same in shared.values()]


def prepare() -> None:
    """A process that makes checks."""
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)


def perform(task: Task) -> Done:
    checks: list[Check] = []
    errors: dict[str, str] = {}
    folder = Path(tempfile.mkdtemp(prefix="clean-"))
    try:
        trials, versions = Trials(_pool(), folder), versions_here()
        for case in task.cases:
            if time.time() > task.until:
                break
            try:
                checks += _checked(case, trials, versions)
            except Exception:  # noqa: BLE001  (other cases must go on)
                errors[case.key] = traceback.format_exc()
    finally:
        shutil.rmtree(folder)
    return Done(checks=checks, errors=errors)


def _checked(case: Case, trials: Trials, versions: Versions) -> Sequence[Check]:
    trial = trials.run(
        Function(train_rank, arguments=(case.reference,)),
        Function(train_rank, ranks=LAYOUTS[case.layout].ranks, arguments=(case,)),
        steps=case.steps,
    )
    return [
        check_of(
            case,
            result,
            isolated=result is trial.isolated,
            seconds=trial.seconds,
            versions=versions,
        )
        for result in trial.results
    ]


def _pool() -> WorkerPool:
    if not _OWN:
        _OWN.append(worker_pool(2))
    return _OWN[0]
