"""A diff as a series of runs: reference, perturbed references, candidate, isolated ones.

    FOLDER/reference                the reference
           perturbed-1 ...          the reference with noise: how much rounding explains
           repeated                 the reference once more, where that is asked for
           candidate                the run to test
           isolation/reference      the reference with taps
           isolation/plans/         what each rank overwrites its values with
           isolation/perturbed-1    the isolated reference with noise
           isolation/candidate      the isolated candidate

Enters: the work of both sides. Leaves: results, and all traces in one folder. It must not know how
work is run; executors do.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttrace.analysis.check import Progress, check, check_isolated
from ttrace.analysis.isolate import write_plans
from ttrace.capture.settings import Settings
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Outcome
from ttrace.lab.launch import prepare_folder
from ttrace.lab.local import LocalExecutor
from ttrace.lab.run import Executor, TracedRun, Work


def diff(
    reference: Work,
    candidate: Work,
    *,
    out: Path | str,
    steps: int = 1,
    perturbed_runs: int = 1,
    repeat_reference: bool = False,
    split_reductions: int = 1,
    isolate: bool = True,
    timeout_seconds: float = 1800.0,
    execute: Executor | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Run both sides with tracing on, compare them, and after a failure name the root cause.

    A side is a shell command, a list of words, or a `Function` on several ranks; its script calls
    `ttrace.attach`. All traces stay in the folder `out`, which must be empty or not there yet.
    `isolate=False` saves the three or more runs that find the root cause. `execute` runs what is to
    run somewhere else than on this machine.
    """
    experiment = Experiment(
        reference=reference,
        candidate=candidate,
        folder=prepare_folder(Path(out)),
        steps=steps,
        timeout_seconds=timeout_seconds,
        perturbed_runs=perturbed_runs,
        repeats_reference=repeat_reference,
        split_reductions=split_reductions,
        execute=execute or LocalExecutor(),
        progress=progress,
    )
    return experiment.diff() if isolate else experiment.compare()


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The work of both sides, the folder that keeps all traces, and who runs and watches."""

    reference: Work
    candidate: Work
    folder: Path
    steps: int = 1
    timeout_seconds: float = 1800.0
    perturbed_runs: int = 1
    repeats_reference: bool = False
    split_reductions: int = 1  # parts in which perturbed references add matmuls
    execute: Executor = field(default_factory=LocalExecutor)
    progress: Progress | None = None

    def diff(self) -> CheckResult:
        """Compare, and when that fails name the root cause."""
        result = self.compare()
        if result.outcome is not Outcome.NOT_EQUIVALENT:
            return result
        return localized(result, self.isolate(candidate=Path(result.candidate)))

    def compare(self) -> CheckResult:
        """Run both sides and the perturbed references, and compare what they recorded."""
        reference = self._run("reference", self.reference)
        perturbed = self._perturbed("perturbed")
        repeated = self._run("repeated", self.reference) if self.repeats_reference else None
        candidate = self._run("candidate", self.candidate)
        return check(
            reference, candidate, perturbed=perturbed, repeated=repeated, progress=self.progress
        )

    def isolate(self, candidate: Path | None = None) -> CheckResult:
        """Run the candidate with every module's input replaced by the reference's.

        What rounding does to a single module is measured on the reference under the same
        replacement, with noise. `candidate`: its plain trace, where it has been recorded already;
        only its alignment is used.
        """
        if candidate is None:
            candidate = self._run("candidate", self.candidate)
        tapped = self._run("isolation/reference", self.reference, tap=True)
        plans = self.folder / "isolation" / "plans"
        write_plans(tapped, tapped, plans / "reference")
        write_plans(tapped, candidate, plans / "candidate")
        perturbed = self._perturbed("isolation/perturbed", plan=plans / "reference")
        isolated = self._run("isolation/candidate", self.candidate, plan=plans / "candidate")
        return check_isolated(
            tapped,
            isolated,
            plans=plans / "candidate",
            perturbed=perturbed,
            progress=self.progress,
        )

    def _perturbed(self, name: str, *, plan: Path | None = None) -> list[Path]:
        return [
            self._run(
                f"{name}-{seed}",
                self.reference,
                noise_seed=seed,
                split=self.split_reductions,
                plan=plan,
            )
            for seed in range(1, self.perturbed_runs + 1)
        ]

    def _run(self, name: str, work: Work, **how: Any) -> Path:
        settings = Settings(folder=self.folder / name, steps=self.steps, **how)
        run = TracedRun(
            name=name, work=work, settings=settings, timeout_seconds=self.timeout_seconds
        )
        self.execute(run)
        return run.folder


def localized(result: CheckResult, isolation: CheckResult) -> CheckResult:
    """A failed comparison with the root causes that an isolated run found."""
    if not isolation.culprits:
        note = Note(topic=Topic.NO_ROOT_CAUSE)
        return replace(result, isolation=isolation, notes=(*result.notes, note))
    return replace(result, culprits=isolation.culprits, isolation=isolation)
