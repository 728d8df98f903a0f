"""The cases: layouts of 64 ranks, what is wrong in each, and where it must be found."""

from __future__ import annotations

import resource
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import ttrace
from benchmarks.simulated.train import WRONG_MODULE, Bug, train
from ttrace.core.blame import Phase
from ttrace.core.results import CheckResult, Outcome

_KIB = 1 if sys.platform == "darwin" else 1024  # macOS counts bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A layout and what is wrong in it; `module` and `phase` are where it must be placed."""

    dp: int
    tp: int
    bug: Bug | None = None
    module: str | None = None
    phase: Phase | None = None

    @property
    def name(self) -> str:
        return f"dp {self.dp} x tp {self.tp}, {self.bug or 'correct'}"


CASES = (
    Case(dp=64, tp=1),
    Case(dp=64, tp=1, bug=Bug.LEFT_OUT, phase=Phase.MAIN_GRADIENT),
    Case(dp=64, tp=1, bug=Bug.SKIPPED_UPDATE, phase=Phase.UPDATE),
    Case(dp=16, tp=4),
    Case(dp=16, tp=4, bug=Bug.WRONG_SLICE, module=WRONG_MODULE),
)


@dataclass(frozen=True, slots=True)
class Measured:
    """A result, and what it took."""

    case: Case
    result: CheckResult
    seconds: float
    peak_bytes: int  # of the largest process: ranks, or the comparison


def measure(case: Case) -> Measured:
    """By the plain comparison, which names the first difference."""
    with _folder() as folder:
        began = time.perf_counter()
        result = ttrace.diff(
            ttrace.Function(train, 1),
            ttrace.Function(train, case.dp * case.tp, (case.dp, case.tp, case.bug), simulated=True),
            out=folder,
            isolate=False,
        )
        seconds = time.perf_counter() - began
    users = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    peak = max(resource.getrusage(user).ru_maxrss for user in users) * _KIB
    return Measured(case, result, seconds, peak)


def is_right(measured: Measured) -> bool:
    """Silent where nothing is wrong; else found, and placed where it is."""
    case, result = measured.case, measured.result
    if case.bug is None:
        return result.outcome is Outcome.EQUIVALENT and not result.failures
    blames = [culprit.blame for culprit in result.culprits]
    return result.outcome is Outcome.NOT_EQUIVALENT and any(
        (case.module is None or case.module in blame.modules)
        and (case.phase is None or case.phase is blame.phase)
        for blame in blames
    )


@contextmanager
def _folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="ttrace-simulated-") as made:
        yield Path(made) / "traces"
