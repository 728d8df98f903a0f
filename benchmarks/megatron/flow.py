"""One case through the whole of TTrace, as `ttrace diff`: compared, then isolated.

Enters: a case. Leaves: what was found, as JSON that says everything the tables need.
"""

from __future__ import annotations

import itertools
import math
import shutil
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from benchmarks.megatron.cases import Case
from ttrace.analysis.check import check
from ttrace.core.results import CheckResult, Verdict
from ttrace.report import wording
from ttrace.report.view import findings
from zoo.megatron.registry import BUGS
from zoo.megatron.training import MODEL_FIELDS, isolate, trace, trace_reference
from zoo.workers import WorkerPool


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What TTrace said of one candidate; there is no isolated run where nothing is asked of it."""

    plain: CheckResult
    isolated: CheckResult | None
    seconds: float

    @property
    def source(self) -> CheckResult:
        """What `ttrace diff` names its culprits from."""
        return self.isolated if self.isolated and self.isolated.culprits else self.plain

    def to_json(self) -> dict[str, Any]:
        blamed = {id_ for culprit in self.source.culprits for id_ in culprit.evidence}
        tensors = self.plain.tensors
        return {
            "exit_code": self.plain.exit_code,
            "isolated_exit_code": None if self.isolated is None else self.isolated.exit_code,
            "named": [[f.where, f.phase, f.reason] for f in findings(self.source)],
            "named_plain": [[f.where, f.phase] for f in findings(self.plain)],
            "tensors": len(tensors),
            "judged": sum(r.verdict not in (Verdict.UNDECIDED, Verdict.EXTRA) for r in tensors),
            "largest": _largest(r.ratio for r in tensors),
            "evidence": _largest(r.ratio for r in self.source.tensors if r.id in blamed),
            "failures": [_failure(r) for r in itertools.islice(self.plain.failures, 5)],
            "isolated_failures": [
                _failure(r)
                for r in itertools.islice(self.isolated.failures if self.isolated else (), 5)
            ],
            "seconds": self.seconds,
        }


def _failure(result: Any) -> str:
    statistic = "" if result.worst is None else result.worst.reading.statistic.value
    said = wording.finding(result)
    return f"{result.id} {result.verdict.value} {result.ratio or 0:.3g} {statistic} {said}"


def _largest(ratios: Any) -> float | str:
    found = max((ratio for ratio in ratios if ratio is not None), default=0.0)
    return found if math.isfinite(found) else str(found)


@dataclass(slots=True)
class Lab:
    """A pool of ranks, and what several cases have in common: references and correct twins."""

    folder: Path
    pool: WorkerPool
    references: dict[str, tuple[Path, Path]] = field(default_factory=dict)
    twins: dict[str, Outcome] = field(default_factory=dict)
    runs: int = 0

    def run(self, case: Case) -> dict[str, Any]:
        start = time.monotonic()
        entry = self._bug(case) if case.bug else self._layout(case)
        return entry | {"ranks": case.ranks, "seconds": time.monotonic() - start}

    def _layout(self, case: Case) -> dict[str, Any]:
        return self._compare(case.ranks, case.layout).to_json()

    def _bug(self, case: Case) -> dict[str, Any]:
        """The bug, and its twin, which is isolated as well: it must be silent in both."""
        bug = BUGS[case.bug]
        twin = f"twin:{bug.name}" if bug.twin else ""
        in_reference = twin if bug.twin_in_reference else ""
        for _ in range(bug.attempts):
            wrong = self._compare(case.ranks, case.layout, bug.name, in_reference)
            if wrong.plain.exit_code == 1:
                break
        correct = bug.correct_layout
        key = repr((case.ranks, sorted(correct.items()), twin))
        if key not in self.twins:
            self.twins[key] = self._compare(
                case.ranks, correct, twin, in_reference, always_isolate=True
            )
        return {
            "source": bug.source,
            "in_paper": bug.in_paper,
            "layout": case.layout,
            "expected": sorted(bug.expected),
            "bug": wrong.to_json(),
            "twin": self.twins[key].to_json(),
        }

    def _compare(
        self,
        ranks: int,
        layout: dict[str, Any],
        bug: str = "",
        in_reference: str = "",
        *,
        always_isolate: bool = False,
    ) -> Outcome:
        """A comparison, and an isolated run where that fails."""
        start = time.monotonic()
        model = {name: value for name, value in layout.items() if name in MODEL_FIELDS}
        model |= {"bug": in_reference} if in_reference else {}
        reference, noisy = self._reference(model)
        candidate = trace(self.pool, self._new("candidate"), ranks, bug, **layout)
        result = check(reference, candidate, perturbed=[noisy])
        isolated = None
        if always_isolate or result.exit_code == 1:
            folder = self._new("isolated")
            isolated = isolate(
                self.pool, folder, candidate, ranks, layout, reference=model, bug=bug
            )
            shutil.rmtree(folder)
        shutil.rmtree(candidate)
        return Outcome(plain=result, isolated=isolated, seconds=time.monotonic() - start)

    def _reference(self, model: dict[str, Any]) -> tuple[Path, Path]:
        key = repr(sorted(model.items()))
        if key not in self.references:
            self.references[key] = trace_reference(self.pool, self._new("reference"), **model)
        return self.references[key]

    def _new(self, name: str) -> Path:
        self.runs += 1
        return self.folder / f"{self.runs}-{name}"
