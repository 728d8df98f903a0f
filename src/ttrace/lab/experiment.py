"""A diff as a series of runs: reference, candidate, perturbed references, isolated ones.

    FOLDER/reference                the reference
           candidate                the run to test
           perturbed-1 ...          the reference with noise: how much rounding explains; five
                                    of them where the comparison is borderline
           repeated                 the reference once more, where that is asked for
           isolation/reference      the reference with taps
           isolation/plans/         what each rank overwrites its values with
           isolation/perturbed-1    the isolated reference with noise
           isolation/candidate      the isolated candidate
           isolation/kept           the same where some modules keep their own values inside, and
                                    whether an error inside them would show
           isolation/coarse/        the same with fewer boundaries, where one of them died

Enters: the work of both sides. Leaves: results, and all traces in one folder. It must not know how
work is run; executors do.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

from ttrace.analysis.check import Progress, check, check_isolated
from ttrace.analysis.effect import (
    harmless,
    probes,
    right,
    settled,
    suspected,
)
from ttrace.analysis.isolate import write_plans
from ttrace.capture.settings import Settings
from ttrace.core.acceptance import Acceptance
from ttrace.core.enclosure import Enclosure
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Outcome, Strength
from ttrace.errors import CommandFailed, TTraceError
from ttrace.lab.conclusion import localized, stands_without
from ttrace.lab.local import LocalExecutor
from ttrace.lab.run import Executor, TracedRun, Work
from ttrace.trace.reader import devices_of

_MORE_RUNS = 4  # chosen: five draws are a mean whose own spread is less than half of one draw's


@dataclass(frozen=True, slots=True)
class Noisy:
    """What is common to the perturbed references of one comparison."""

    name: str
    plan: Path | None = None
    other_kernels: bool = False


def _devices_differ(reference: Path, candidate: Path) -> bool:
    try:
        return devices_of(reference) != devices_of(candidate)
    except TTraceError:
        return False  # a trace that cannot be read is told of when it is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """The work of both sides, the folder that keeps all traces, and who runs and watches."""

    reference: Work
    candidate: Work
    folder: Path
    steps: int = 1
    skip: int = 0
    every: int = 1
    runs_to_end: bool = False
    timeout_seconds: float = 1800.0
    perturbed_runs: int = 1
    repeats_reference: bool = False
    split_reductions: int = 1  # parts in which perturbed references add matmuls
    strict: bool = False  # what differs without an effect fails too
    execute: Executor = field(default_factory=LocalExecutor)
    progress: Progress | None = None
    accept: tuple[Acceptance, ...] = ()

    def diff(self) -> CheckResult:
        """Compare, and when that fails, or is borderline, let the isolated run decide."""
        result = self.compare()
        is_clear = result.strength is not Strength.BORDERLINE
        if result.outcome is Outcome.UNDECIDED or (
            result.outcome is Outcome.EQUIVALENT and is_clear
        ):
            return result
        try:
            isolation = self.isolate(result)
        except CommandFailed as error:
            return stands_without(result, error)
        return localized(result, isolation, strict=self.strict)

    def compare(self) -> CheckResult:
        """Run both sides and the perturbed references, and compare what they recorded."""
        repeats = int(self.repeats_reference)
        after_it = self.perturbed_runs + repeats
        reference = self._run("reference", self.reference, then=1 + after_it)
        candidate = self._run("candidate", self.candidate, then=after_it)
        noisy = Noisy("perturbed", other_kernels=_devices_differ(reference, candidate))
        perturbed, lost = self._perturbed_or_why(noisy, then=repeats)
        repeated = self._run("repeated", self.reference) if self.repeats_reference else None

        def compared(noise: Sequence[Path]) -> CheckResult:
            return check(
                reference,
                candidate,
                perturbed=noise,
                repeated=repeated,
                progress=self.progress,
                accept=self.accept,
            )

        result = self._decided(compared, perturbed, noisy)
        return result if lost is None else stands_without(result, lost)

    def _perturbed_or_why(
        self, noisy: Noisy, *, then: int
    ) -> tuple[list[Path], CommandFailed | None]:
        """None, where one of them did not end well: much can be said without them."""
        try:
            return self._perturbed(noisy, then=then), None
        except CommandFailed as error:
            return [], error

    def isolate(
        self, plain: CheckResult | None = None, *, candidate: Path | None = None
    ) -> CheckResult:
        """Run the candidate with every module's input replaced by the reference's.

        What rounding does to a single module is measured on the reference under the same
        replacement, with noise. Where a run dies of it, all are repeated with values given at the
        boundaries of blocks alone. `plain` is the comparison, where it has been made already: what
        it finds right tells what may be harmless. `candidate` is a plain trace of it, without one.
        """
        if plain is not None:
            candidate = Path(plain.candidate)
        if candidate is None:
            candidate = self._run("candidate", self.candidate, then=self.perturbed_runs + 2)
        try:
            isolated = self._isolated("isolation", candidate)
        except CommandFailed as error:
            return self._coarsely(candidate, error)
        enclosures = () if self.strict else suspected(plain, isolated)
        if not enclosures:
            return isolated
        try:
            return self._reconsidered(plain, isolated, enclosures, candidate)
        except CommandFailed as error:
            return stands_without(isolated, error)

    def _reconsidered(
        self,
        plain: CheckResult | None,
        isolated: CheckResult,
        enclosures: Sequence[Enclosure],
        candidate: Path,
    ) -> CheckResult:
        """Once more with these modules as one segment each: is what they give right?

        Where it is, an error of the same size inside of them, in the reference, must show.
        """
        folder, tapped = "isolation/kept", Path(isolated.reference)
        kept = self._isolated(folder, candidate, tapped=tapped, enclosures=enclosures)
        found = right(enclosures, kept, isolated)
        errors = probes(found, isolated, plain)
        if not errors:
            return settled(isolated, kept, enclosures, ())
        plans = self.folder / folder / "plans"
        write_plans(tapped, tapped, plans / "probe", enclosures=enclosures, probes=errors)
        probed = check_isolated(
            tapped,
            self._run(f"{folder}/probe", self.reference, plan=plans / "probe"),
            plans=plans / "probe",
            perturbed=kept.perturbed,
            enclosures=enclosures,
            progress=self.progress,
        )
        return settled(isolated, kept, enclosures, harmless(found, probed))

    def _coarsely(self, candidate: Path, died: CommandFailed) -> CheckResult:
        """The same with fewer boundaries; where that dies, too, the first death is what is told."""
        try:
            result = self._isolated("isolation/coarse", candidate, coarse=True)
        except CommandFailed:
            raise died from None
        note = Note(topic=Topic.COARSER, text=str(died))
        return replace(result, notes=(*result.notes, note))

    def _isolated(
        self,
        name: str,
        candidate: Path,
        *,
        tapped: Path | None = None,
        coarse: bool = False,
        enclosures: Sequence[Enclosure] = (),
    ) -> CheckResult:
        if tapped is None:
            then = self.perturbed_runs + 1
            how: dict[str, Any] = {"tap": True, "coarse": coarse}
            tapped = self._run(f"{name}/reference", self.reference, then=then, **how)
        plans = self.folder / name / "plans"
        planned = partial(write_plans, tapped, coarse=coarse, enclosures=enclosures)
        planned(tapped, plans / "reference")
        planned(candidate, plans / "candidate")
        noisy = Noisy(
            f"{name}/perturbed",
            plan=plans / "reference",
            other_kernels=_devices_differ(tapped, candidate),
        )
        perturbed = self._perturbed(noisy, then=1)
        isolated = self._run(f"{name}/candidate", self.candidate, plan=plans / "candidate")

        def compared(noise: Sequence[Path]) -> CheckResult:
            return check_isolated(
                tapped,
                isolated,
                plans=plans / "candidate",
                perturbed=noise,
                enclosures=enclosures,
                progress=self.progress,
                accept=self.accept,
            )

        return self._decided(compared, perturbed, noisy)

    def _decided(
        self,
        compared: Callable[[Sequence[Path]], CheckResult],
        perturbed: Sequence[Path],
        noisy: Noisy,
    ) -> CheckResult:
        """The comparison; where it is borderline, once more with further perturbed runs."""
        first = compared(perturbed)
        if first.strength is not Strength.BORDERLINE:
            return first
        try:
            more = self._perturbed(noisy, after=len(perturbed), count=_MORE_RUNS)
        except CommandFailed as error:
            return stands_without(first, error)
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
        self, noisy: Noisy, *, after: int = 0, count: int | None = None, then: int = 0
    ) -> list[Path]:
        """As many as are asked for, or `count` of them; seeds go on where others ended."""
        last = after + (count or self.perturbed_runs)
        return [
            self._run(
                f"{noisy.name}-{seed}",
                self.reference,
                noise_seed=seed,
                other_kernels=noisy.other_kernels,
                split=self.split_reductions,
                plan=noisy.plan,
                then=last - seed + then,
            )
            for seed in range(1 + after, 1 + last)
        ]

    def _run(self, name: str, work: Work, *, then: int = 0, **how: Any) -> Path:
        when: dict[str, Any] = {"steps": self.steps, "skip": self.skip, "every": self.every}
        settings = Settings(folder=self.folder / name, **when, **how)
        run = TracedRun(
            name=name,
            work=work,
            settings=settings,
            timeout_seconds=self.timeout_seconds,
            to_end=self.runs_to_end,
            then=then,
        )
        self.execute(run)
        return run.folder
