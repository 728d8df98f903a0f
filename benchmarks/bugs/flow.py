"""A case through the whole of TTrace: compared, then isolated, with its bugs and without."""

from __future__ import annotations

import math
import time
import warnings
from dataclasses import dataclass
from pathlib import Path

from ttrace.core.readings import Statistic
from ttrace.core.results import CheckResult, Verdict
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import TASK_SECONDS, WorkerPool
from ttrace.lab.local import LocalExecutor
from ttrace.lab.run import Function
from ttrace.report.wording import phase, where
from zoo.native.case import Case, Place


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What TTrace said of one candidate."""

    plain: CheckResult
    isolated: CheckResult
    seconds: float

    @property
    def named(self) -> tuple[Place, ...]:
        return tuple((where(culprit), phase(culprit)) for culprit in self.isolated.culprits)

    @property
    def is_seen_by_norm(self) -> bool:
        """Whether the plain comparison would fail if tensors were judged by their norms alone."""
        return any(
            failure.verdict is not Verdict.MISMATCH
            or any(
                j.reading.statistic is Statistic.NORM and j.ratio > 1 for j in failure.judgements
            )
            for failure in self.plain.failures
        )

    @property
    def largest_ratio(self) -> float:
        """Error over tolerance of the worst evidence; infinite where nothing may differ."""
        evidence = {id_ for culprit in self.isolated.culprits for id_ in culprit.evidence}
        found = [r.ratio for r in self.isolated.tensors if r.id in evidence and r.ratio is not None]
        return max(found, default=math.nan)


def run_case(case: Case, pool: WorkerPool, folder: Path, *, with_bugs: bool) -> Outcome:
    """Six runs in the pool: reference, perturbed, candidate, and the three of isolation."""
    experiment = Experiment(
        reference=Function(train_rank, arguments=(case.name, False)),
        candidate=Function(train_rank, ranks=case.world_size, arguments=(case.name, with_bugs)),
        folder=folder,
        steps=case.steps,
        timeout_seconds=TASK_SECONDS,
        execute=LocalExecutor(pool),
    )
    start = time.perf_counter()
    plain = experiment.compare()
    isolated = experiment.isolate(candidate=Path(plain.candidate))
    return Outcome(plain=plain, isolated=isolated, seconds=time.perf_counter() - start)


def train_rank(name: str, with_bugs: bool) -> None:  # noqa: FBT001  (travels to the pool)
    """One rank of one run, in a worker of the pool."""
    import torch
    import torch.distributed as dist

    from benchmarks.bugs.catalogue import find_case

    # the logits are a view, as the warning says, but nobody changes them in place
    warnings.filterwarnings("ignore", message="FSDP2-wrapped module")
    torch.manual_seed(0)
    case = find_case(name)
    case.train(case.planted if with_bugs else frozenset())
    dist.barrier()
