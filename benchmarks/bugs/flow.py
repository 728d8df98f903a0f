"""A case through the whole of TTrace: compared, then isolated, with its bugs and without."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from ttrace.core.readings import Statistic
from ttrace.core.results import CheckResult, Verdict
from ttrace.lab.experiment import Experiment
from ttrace.lab.launch import TracedRun
from ttrace.report.wording import phase, where
from zoo.native.case import Case, Place

_REFERENCE, _TWIN, _BUGGY = "reference", "twin", "bug"


class Pool(Protocol):
    """Processes that run a function on ranks 0..n-1 at once."""

    def run(
        self,
        world_size: int,
        function: Callable[..., Any],
        *args: Any,
        environment: dict[str, str] | None = None,
    ) -> list[Any]: ...

    def close(self) -> None: ...


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


def run_case(case: Case, pool: Pool, folder: Path, *, with_bugs: bool) -> Outcome:
    """Six runs in the pool: reference, perturbed, candidate, and the three of isolation."""
    candidate = _BUGGY if with_bugs else _TWIN
    experiment = Experiment(
        reference=(case.name, _REFERENCE),
        candidate=(case.name, candidate),
        folder=folder,
        steps=case.steps,
    )

    def run(traced: TracedRun) -> None:
        variant = traced.command[-1]
        ranks = 1 if variant == _REFERENCE else case.world_size
        pool.run(ranks, train_rank, case.name, variant == _BUGGY, environment=traced.variables)

    start = time.perf_counter()
    plain = experiment.compare(run, _silent)
    isolated = experiment.isolate(run, _silent)
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


def _silent(what: str, done: int, total: int) -> None:
    """Progress is shown by the case, not by its tensors."""
