"""Trials: bugs and their correct twins through the whole of TTrace.

    trials = Trials(pool, folder)
    trials.bug(bug).named           what the isolated run blames
    trials.twin(bug).is_silent      must be

Enters: functions on ranks. Leaves: what TTrace said of them. A reference is run once for all
candidates that are compared with it, and a twin once for all bugs that share it: they are kept in a
memo, which processes may share. A bug is run whenever it is asked for.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path

from ttrace.core.blame import Blame, Culprit
from ttrace.core.results import CheckResult, Verdict
from ttrace.core.statistics import Statistic
from ttrace.lab.experiment import Experiment, localized
from ttrace.lab.functions import TASK_SECONDS, WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.options import Capture
from ttrace.lab.run import Function, TracedRun
from ttrace.report.json_file import read_result, render
from ttrace.trace.plan import first_plan
from ttrace.trace.segment import HEADER_BYTES
from ttrace.trace.store import local_path
from zoo.bug import Bug
from zoo.memo import Memo

# Chosen: models of the zoo are tiny. A tensor of 1,024 bytes then has a fingerprint.
FEWEST_SUMS = 64


def blames(result: CheckResult) -> tuple[Blame, ...]:
    """Whom a result blames, in its order."""
    return tuple(culprit.blame for culprit in result.culprits)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What TTrace said of one candidate; `isolated` is None where that was not asked for."""

    plain: CheckResult
    isolated: CheckResult | None
    seconds: float
    size_bytes: int = 0  # of all traces, those of references too
    shared_seconds: float = 0.0  # that runs of the reference took which others had made before

    @property
    def seconds_alone(self) -> float:
        """What it would have taken without what others had made before."""
        return self.seconds + self.shared_seconds

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return (self.plain,) if self.isolated is None else (self.plain, self.isolated)

    @property
    def told(self) -> CheckResult:
        """What a report names its culprits from: the isolated run, if that names any."""
        return self.isolated if self.isolated and self.isolated.culprits else self.plain

    @property
    def result(self) -> CheckResult:
        """As `ttrace diff` would report it."""
        return self.plain if self.isolated is None else localized(self.plain, self.isolated)

    @property
    def culprits(self) -> tuple[Culprit, ...]:
        """What the isolated run names."""
        return () if self.isolated is None else self.isolated.culprits

    @property
    def named(self) -> tuple[Blame, ...]:
        return tuple(culprit.blame for culprit in self.culprits)

    @property
    def is_silent(self) -> bool:
        """Whether it passed in the plain comparison and in the isolated one.

        What the isolated one finds to be harmless does not count in the plain one.
        """
        if self.isolated is None or self.isolated.exit_code:
            return False
        return self.result.exit_code == 0

    @property
    def largest_right_ratio(self) -> float:
        """Error over tolerance of the worst tensor in both that is not harmless."""
        if self.isolated is None:
            return self.plain.largest_ratio
        return max(self.result.largest_ratio, self.isolated.largest_ratio)

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
        evidence = {id_ for culprit in self.told.culprits for id_ in culprit.evidence}
        found = [r.ratio for r in self.told.tensors if r.id in evidence and r.ratio is not None]
        return max(found, default=math.nan)


@dataclass(frozen=True, slots=True)
class Trials:
    """A pool of ranks, a folder, and a memo of the runs that several trials have in common."""

    pool: WorkerPool
    folder: Path
    capture: Capture = Capture.FULL
    fewest_sums: int | None = None
    shared: Memo | None = None  # with other processes; else they are kept in the folder
    _spared: list[float] = field(default_factory=list)  # seconds of references met again

    @property
    def memo(self) -> Memo:
        return self.shared or Memo(self.folder / "memo")

    def bug(self, bug: Bug) -> Trial:
        """The bug, compared and isolated; a race is tried until it shows."""
        for _ in range(bug.attempts):
            found = self.run(bug.reference, bug.candidate, steps=bug.steps)
            if found.plain.exit_code == 1:
                break
        return found

    def twin(self, bug: Bug) -> Trial:
        """Its correct twin, which must be silent in both."""
        return self.correct(bug.reference, bug.twin, steps=bug.steps)

    def correct(self, reference: Function, candidate: Function, *, steps: int = 1) -> Trial:
        """A correct run, which several wrong ones may have as their twin."""

        def make(folder: Path) -> None:
            _write_trial(self.run(reference, candidate, steps=steps), folder)

        key = ("trial", reference, candidate, steps, self.capture, self.fewest_sums)
        return _read_trial(self.memo.made(key, make))

    def run(
        self,
        reference: Function,
        candidate: Function,
        *,
        steps: int = 1,
        isolates_equivalent: bool = True,
    ) -> Trial:
        """A comparison, then an isolated run."""
        start, shared = time.monotonic(), sum(self._spared)
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            experiment = self._experiment(reference, candidate, Path(folder), steps)
            plain = experiment.compare()
            isolated = None
            if isolates_equivalent or plain.exit_code == 1:
                isolated = experiment.isolate(plain)
            size_bytes = _size_bytes(Path(folder))
        return Trial(
            plain=plain,
            isolated=isolated,
            seconds=time.monotonic() - start,
            size_bytes=size_bytes,
            shared_seconds=sum(self._spared) - shared,
        )

    def compare(self, reference: Function, candidate: Function, *, steps: int = 1) -> CheckResult:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return self._experiment(reference, candidate, Path(folder), steps).compare()

    def isolate(self, reference: Function, candidate: Function, *, steps: int = 1) -> CheckResult:
        with tempfile.TemporaryDirectory(dir=self.folder) as folder:
            return self._experiment(reference, candidate, Path(folder), steps).isolate()

    def _experiment(
        self, reference: Function, candidate: Function, folder: Path, steps: int
    ) -> Experiment:
        return Experiment(
            reference=reference,
            candidate=candidate,
            folder=folder,
            steps=steps,
            timeout_seconds=TASK_SECONDS,
            execute=self._execute,
            capture=self.capture,
            fewest_sums=self.fewest_sums,
        )

    def _execute(self, run: TracedRun) -> None:
        """Run it in the pool, or take the same run of the same reference."""
        if run.name.endswith("candidate"):
            LocalExecutor(self.pool)(run)
            return
        settings = run.settings
        plan = None if settings.plan is None else first_plan(settings.plan).read_bytes()
        blocks = None if settings.blocks is None else settings.blocks.read_bytes()
        key = (run.work, replace(settings, folder=Path(), plan=None, blocks=None), plan, blocks)
        is_fresh = False

        def make(made: Path) -> None:
            nonlocal is_fresh
            is_fresh, start = True, time.monotonic()
            traced = replace(settings, folder=made / "trace")
            LocalExecutor(self.pool)(replace(run, settings=traced))
            (made / "seconds").write_text(str(time.monotonic() - start))

        found = self.memo.made(("reference", *key), make)
        if not is_fresh:
            self._spared.append(float((found / "seconds").read_text()))
        folder = local_path(run.folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        folder.symlink_to(found / "trace")


def _write_trial(trial: Trial, folder: Path) -> None:
    (folder / "plain.json").write_text(render(trial.plain))
    if trial.isolated is not None:
        (folder / "isolated.json").write_text(render(trial.isolated))
    numbers = [trial.seconds, trial.size_bytes, trial.shared_seconds]
    (folder / "numbers.json").write_text(json.dumps(numbers))


def _read_trial(folder: Path) -> Trial:
    seconds, size_bytes, shared_seconds = json.loads((folder / "numbers.json").read_text())
    isolated = folder / "isolated.json"
    return Trial(
        plain=read_result(folder / "plain.json"),
        isolated=read_result(isolated) if isolated.exists() else None,
        seconds=seconds,
        size_bytes=size_bytes,
        shared_seconds=shared_seconds,
    )


def _size_bytes(folder: Path) -> int:
    """Of tensors, through links to shared references too."""
    return sum(
        file.stat().st_size - HEADER_BYTES
        for run in folder.rglob("*")
        if run.name != "plans"
        for file in run.glob("rank-*/seg-*.safetensors")
    )
