"""A diff as a series of runs: reference, perturbed references, candidate, isolated ones.

    FOLDER/reference                the reference
           perturbed-1 ...          the reference with noise: how much rounding explains; five
                                    of them where the comparison is borderline
           repeated                 the reference once more, where that is asked for
           candidate                the run to test
           isolation/reference      the reference with taps
           isolation/plans/         what each rank overwrites its values with
           isolation/perturbed-1    the isolated reference with noise
           isolation/candidate      the isolated candidate
           isolation/coarse/        the same with fewer boundaries, where one of them died

Enters: the work of both sides. Leaves: results, and all traces in one folder. It must not know how
work is run; executors do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttrace.analysis.check import Progress, check, check_isolated
from ttrace.analysis.isolate import write_plans
from ttrace.capture.settings import Settings
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Outcome, Strength, TensorResult, Verdict
from ttrace.errors import CommandFailed
from ttrace.lab.launch import prepare_folder
from ttrace.lab.local import LocalExecutor
from ttrace.lab.run import Executor, TracedRun, Work

_MORE_RUNS = 4  # chosen: five draws are a mean whose own spread is less than half of one draw's


def diff(
    reference: Work,
    candidate: Work,
    *,
    out: Path | str,
    steps: int = 1,
    skip: int = 0,
    run_to_end: bool = False,
    perturbed_runs: int = 1,
    repeat_reference: bool = False,
    split_reductions: int = 1,
    isolate: bool = True,
    timeout_seconds: float = 1800.0,
    execute: Executor | None = None,
    progress: Progress | None = None,
) -> CheckResult:
    """Run both sides with tracing on, compare them, and after a failure name the root cause.

    A comparison that is borderline gets more evidence: further perturbed runs, and the isolated
    one, which decides.

    A side is a shell command, a list of words, or a `Function` on several ranks; its script calls
    `ttrace.attach`. All traces stay in the folder `out`, which must be empty or not there yet.
    `skip` steps are made before the first that is recorded.
    A command that goes on when its steps are recorded is stopped, unless `run_to_end` lets it.
    `isolate=False` saves the three or more runs that find the root cause. `execute` runs what is to
    run somewhere else than on this machine.
    """
    experiment = Experiment(
        reference=reference,
        candidate=candidate,
        folder=prepare_folder(Path(out)),
        steps=steps,
        skip=skip,
        runs_to_end=run_to_end,
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
    skip: int = 0
    runs_to_end: bool = False
    timeout_seconds: float = 1800.0
    perturbed_runs: int = 1
    repeats_reference: bool = False
    split_reductions: int = 1  # parts in which perturbed references add matmuls
    execute: Executor = field(default_factory=LocalExecutor)
    progress: Progress | None = None

    def diff(self) -> CheckResult:
        """Compare, and when that fails, or is borderline, let the isolated run decide."""
        result = self.compare()
        is_clear = result.strength is not Strength.BORDERLINE
        if result.outcome is Outcome.UNDECIDED or (
            result.outcome is Outcome.EQUIVALENT and is_clear
        ):
            return result
        try:
            isolation = self.isolate(candidate=Path(result.candidate))
        except CommandFailed as error:
            return _without(result, error)
        return localized(result, isolation)

    def compare(self) -> CheckResult:
        """Run both sides and the perturbed references, and compare what they recorded."""
        reference = self._run("reference", self.reference)
        perturbed = self._perturbed("perturbed")
        repeated = self._run("repeated", self.reference) if self.repeats_reference else None
        candidate = self._run("candidate", self.candidate)

        def compared(noise: Sequence[Path]) -> CheckResult:
            return check(
                reference, candidate, perturbed=noise, repeated=repeated, progress=self.progress
            )

        return self._decided(compared, perturbed, "perturbed")

    def isolate(self, candidate: Path | None = None) -> CheckResult:
        """Run the candidate with every module's input replaced by the reference's.

        What rounding does to a single module is measured on the reference under the same
        replacement, with noise. Where a run dies of it, all are repeated with values given at the
        boundaries of blocks alone. `candidate`: its plain trace, where it has been recorded
        already; only its alignment is used.
        """
        if candidate is None:
            candidate = self._run("candidate", self.candidate)
        try:
            return self._isolated("isolation", candidate)
        except CommandFailed as error:
            return self._coarsely(candidate, error)

    def _coarsely(self, candidate: Path, died: CommandFailed) -> CheckResult:
        """The same with fewer boundaries; where that dies, too, the first death is what is told."""
        try:
            result = self._isolated("isolation/coarse", candidate, coarse=True)
        except CommandFailed:
            raise died from None
        note = Note(topic=Topic.COARSER, text=str(died))
        return replace(result, notes=(*result.notes, note))

    def _isolated(self, name: str, candidate: Path, *, coarse: bool = False) -> CheckResult:
        tapped = self._run(f"{name}/reference", self.reference, tap=True, coarse=coarse)
        plans = self.folder / name / "plans"
        write_plans(tapped, tapped, plans / "reference", coarse=coarse)
        write_plans(tapped, candidate, plans / "candidate", coarse=coarse)
        perturbed = self._perturbed(f"{name}/perturbed", plan=plans / "reference")
        isolated = self._run(f"{name}/candidate", self.candidate, plan=plans / "candidate")

        def compared(noise: Sequence[Path]) -> CheckResult:
            return check_isolated(
                tapped,
                isolated,
                plans=plans / "candidate",
                perturbed=noise,
                progress=self.progress,
            )

        return self._decided(compared, perturbed, f"{name}/perturbed", plan=plans / "reference")

    def _decided(
        self,
        compared: Callable[[Sequence[Path]], CheckResult],
        perturbed: Sequence[Path],
        name: str,
        *,
        plan: Path | None = None,
    ) -> CheckResult:
        """The comparison; where it is borderline, once more with further perturbed runs."""
        first = compared(perturbed)
        if first.strength is not Strength.BORDERLINE:
            return first
        try:
            more = self._perturbed(name, plan=plan, after=len(perturbed), count=_MORE_RUNS)
        except CommandFailed as error:
            return _without(first, error)
        result = compared([*perturbed, *more])
        note = Note(
            topic=Topic.MORE_RUNS,
            count=len(more),
            total=len(perturbed),
            gains=(first.largest_ratio,),
            factor=result.largest_ratio,
        )
        return replace(result, notes=(*result.notes, note))

    def _perturbed(
        self, name: str, *, plan: Path | None = None, after: int = 0, count: int | None = None
    ) -> list[Path]:
        """As many as are asked for, or `count` of them; seeds go on where others ended."""
        return [
            self._run(
                f"{name}-{seed}",
                self.reference,
                noise_seed=seed,
                split=self.split_reductions,
                plan=plan,
            )
            for seed in range(1 + after, 1 + after + (count or self.perturbed_runs))
        ]

    def _run(self, name: str, work: Work, **how: Any) -> Path:
        settings = Settings(folder=self.folder / name, steps=self.steps, skip=self.skip, **how)
        run = TracedRun(
            name=name,
            work=work,
            settings=settings,
            timeout_seconds=self.timeout_seconds,
            to_end=self.runs_to_end,
        )
        self.execute(run)
        return run.folder


def _without(result: CheckResult, error: CommandFailed) -> CheckResult:
    """The verdict that can be given, where a run that would have told more did not end well."""
    note = Note(topic=Topic.NO_EVIDENCE, text=str(error))
    return replace(result, notes=(*result.notes, note))


def localized(result: CheckResult, isolation: CheckResult) -> CheckResult:
    """A comparison with the root causes that an isolated run found.

    Where it finds none, what is borderline and right by itself is rounding that has grown.
    """
    coarser = [note for note in isolation.notes if note.topic is Topic.COARSER]
    result = replace(result, notes=(*result.notes, *coarser))
    if isolation.culprits:
        # Which numbers explain nothing is known where the culprits are.
        of_result = [note for note in result.notes if note.topic is not Topic.OTHER_NUMBER]
        unused = [note for note in isolation.notes if note.topic is Topic.OTHER_NUMBER]
        return replace(
            result,
            culprits=isolation.culprits,
            isolation=isolation,
            notes=(*of_result, *unused),
        )
    right = {r.id for r in isolation.tensors if r.verdict is Verdict.PASS}
    excused = [r for r in result.failures if r.id in right]
    if result.strength is Strength.BORDERLINE and len(excused) == len(result.failures):
        return _excused(replace(result, isolation=isolation), excused)
    note = Note(topic=Topic.NO_ROOT_CAUSE)
    return replace(result, isolation=isolation, notes=(*result.notes, note))


def _excused(result: CheckResult, excused: Sequence[TensorResult]) -> CheckResult:
    ids = {tensor.id for tensor in excused}
    note = Note(
        topic=Topic.RIGHT_BY_ITSELF,
        count=len(ids),
        first=excused[0].id if excused else None,
        factor=result.largest_ratio,
    )
    return replace(
        result,
        culprits=(),
        notes=(*result.notes, note) if excused else result.notes,
        tensors=tuple(
            replace(tensor, verdict=Verdict.BORDERLINE) if tensor.id in ids else tensor
            for tensor in result.tensors
        ),
    )
