"""A series of runs of a reference and a candidate, into one folder. What for, others decide.

What the runs record:

    full          every run records values
    fingerprint   every run records fingerprints; no isolated runs, which need values
    auto          fingerprints first; where it isolates values, of the blocks that are suspected

Enters: the work of both sides. Leaves: traces. It must not know how work is run; executors do.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from ttrace.analysis.check import check
from ttrace.analysis.work import Progress
from ttrace.capture.settings import Settings
from ttrace.core.finding import Note, Topic
from ttrace.core.results import CheckResult, Strength
from ttrace.errors import CommandFailed, TTraceError
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.options import ComparisonOptions
from ttrace.lab.run import Executor, TracedRun, Work
from ttrace.trace.reader import devices_of

_MORE_RUNS = 4  # chosen: five draws are a mean whose own spread is less than half of one draw's


@dataclass(frozen=True, slots=True)
class Noisy:
    """What is common to the perturbed references of one comparison."""

    name: str
    plan: Path | None = None
    other_kernels: bool = False
    recorded: Mapping[str, Any] = field(default_factory=dict)  # what, as settings say it


def devices_differ(reference: Path, candidate: Path) -> bool:
    try:
        return devices_of(reference) != devices_of(candidate)
    except TTraceError:
        return False  # a trace that cannot be read is told of when it is compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Series(ComparisonOptions):
    """The work of both sides, the folder that keeps all traces, and who runs and watches."""

    reference: Work
    candidate: Work
    folder: Path
    execute: Executor = field(default_factory=LocalExecutor)
    progress: Progress | None = None
    fewest_sums: int | None = None  # of a fingerprint
    blocks: Path | None = None  # of samples, in which modules of the reference run

    def decided(
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
            more = self.perturbed(noisy, after=len(perturbed), count=_MORE_RUNS)
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

    def checked(
        self,
        reference: Path,
        candidate: Path,
        perturbed: Sequence[Path],
        noisy: Noisy,
        repeated: Path | None = None,
    ) -> CheckResult:
        """The comparison of these traces, with further perturbed runs where that is borderline."""

        def compared(noise: Sequence[Path]) -> CheckResult:
            return check(
                reference,
                candidate,
                perturbed=noise,
                repeated=repeated,
                progress=self.progress,
                accept=self.accept,
            )

        return self.decided(compared, perturbed, noisy)

    def perturbed(
        self, noisy: Noisy, *, after: int = 0, count: int | None = None, then: int = 0
    ) -> list[Path]:
        """As many as are asked for, or `count` of them; seeds go on where others ended."""
        last = after + (count or self.perturbed_runs)
        return [
            self.run(
                f"{noisy.name}-{seed}",
                self.reference,
                noise_seed=seed,
                other_kernels=noisy.other_kernels,
                split=self.split_reductions,
                plan=noisy.plan,
                then=last - seed + then,
                **noisy.recorded,
            )
            for seed in range(1 + after, 1 + last)
        ]

    def run(self, name: str, work: Work, *, then: int = 0, **how: Any) -> Path:
        when: dict[str, Any] = {"steps": self.steps, "skip": self.skip, "every": self.every}
        folder = self.folder / name
        if work is self.reference:
            how["blocks"] = self.blocks
        settings = Settings(folder=folder, sums=self.fewest_sums, **when, **how)
        run = TracedRun(
            name=name,
            work=work,
            settings=settings,
            timeout_seconds=self.timeout_seconds,
            to_end=self.run_to_end,
            elsewhere=self.elsewhere,
            then=then,
        )
        self.execute(run)
        return folder


def stands_without(result: CheckResult, error: CommandFailed) -> CheckResult:
    """The verdict that can be given, where a run that would have told more did not end well."""
    note = Note(topic=Topic.NO_EVIDENCE, text=str(error))
    return replace(result, notes=(*result.notes, note))
