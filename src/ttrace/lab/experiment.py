"""A diff as a series of runs: reference, perturbed references, candidate, isolated ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from ttrace.analysis.check import Progress, check, check_isolated
from ttrace.analysis.isolate import write_plans
from ttrace.core.results import CheckResult
from ttrace.lab.launch import TracedRun

Command = str | Sequence[str]
Runner = Callable[[TracedRun], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Two commands, and the folder in which all of their traces are kept."""

    reference: Command
    candidate: Command
    folder: Path
    steps: int = 1
    timeout_seconds: float = 1800.0
    calibration_runs: int = 1
    repeats_reference: bool = False
    split_reductions: int = 1  # parts in which perturbed references add matmuls

    def compare(self, run: Runner, progress: Progress) -> CheckResult:
        """Run both sides and the perturbed references, and compare what they recorded."""
        reference = self._run(run, "reference", self.reference)
        noisy = [
            self._run(run, f"perturbed-{seed}", self.reference, noise=seed)
            for seed in range(1, self.calibration_runs + 1)
        ]
        repeated = None
        if self.repeats_reference:
            repeated = self._run(run, "repeated", self.reference)
        candidate = self._run(run, "candidate", self.candidate)
        return check(reference, candidate, perturbed=noisy, repeated=repeated, progress=progress)

    def isolate(self, run: Runner, progress: Progress) -> CheckResult:
        """Run the candidate with every module's input replaced by the reference's.

        What rounding does to a single module is measured on the reference under the same
        replacement, with noise.
        """
        tapped = self._run(run, "isolation/reference", self.reference, taps=True)
        plans = self.folder / "isolation" / "plans"
        write_plans(tapped, tapped, plans / "reference")
        noisy = [
            self._run(
                run,
                f"isolation/perturbed-{seed}",
                self.reference,
                noise=seed,
                plans=plans / "reference",
            )
            for seed in range(1, self.calibration_runs + 1)
        ]
        scales = write_plans(tapped, self.folder / "candidate", plans / "candidate")
        candidate = self._run(run, "isolation/candidate", self.candidate, plans=plans / "candidate")
        return check_isolated(tapped, candidate, scales=scales, perturbed=noisy, progress=progress)

    def _run(
        self,
        run: Runner,
        name: str,
        command: Command,
        *,
        noise: int | None = None,
        taps: bool = False,
        plans: Path | None = None,
    ) -> Path:
        folder = self.folder / name
        run(
            TracedRun(
                name=name,
                command=command,
                folder=folder,
                steps=self.steps,
                noise=noise,
                split=1 if noise is None else self.split_reductions,
                taps=taps,
                plans=plans,
                timeout_seconds=self.timeout_seconds,
            )
        )
        return folder


def localized(result: CheckResult, isolation: CheckResult) -> CheckResult:
    """A failed comparison with the places that an isolated run found to be wrong themselves."""
    if not isolation.culprits:
        note = (
            "no module is wrong by itself when it gets the reference's values: the places named "
            "are where the first difference was seen"
        )
        return replace(result, isolation=isolation, notes=(*result.notes, note))
    return replace(result, culprits=isolation.culprits, isolation=isolation)
