"""Which runs an experiment makes, and that a function is as good as a command."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import ttrace
from tests.support import tiny_train
from tests.support.made_results import made
from ttrace.core.finding import Topic
from ttrace.core.record import RankInfo
from ttrace.core.results import CheckResult, Outcome
from ttrace.errors import CommandFailed, UsageError
from ttrace.lab import isolation
from ttrace.lab import series as lab
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function, TracedRun
from ttrace.trace.store import local_path
from ttrace.trace.writer import TraceWriter

COMPARED = ["reference", "candidate", "perturbed-1"]
ISOLATED = ["isolation/reference", "isolation/perturbed-1", "isolation/candidate"]


class Watched:
    """An executor that runs nothing, and an analysis that says what it is told to say."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, result: CheckResult) -> None:
        self.runs: list[TracedRun] = []
        self.plans: list[tuple[Path, ...]] = []
        self.judged: list[tuple[Path, ...]] = []

        def check(*traces: Path, perturbed: list[Path], **more: Any) -> CheckResult:
            self.judged.append((*traces, *perturbed))
            return replace(result, candidate=str(traces[1]))

        monkeypatch.setattr(lab, "check", check)
        monkeypatch.setattr(isolation, "check_isolated", check)
        monkeypatch.setattr(isolation, "write_plans", lambda *paths, **_: self.plans.append(paths))

    def __call__(self, run: TracedRun) -> None:
        self.runs.append(run)

    @property
    def names(self) -> list[str]:
        return [run.name for run in self.runs]

    def experiment(self, folder: Path, **more: Any) -> Experiment:
        return Experiment(reference="one", candidate="four", folder=folder, execute=self, **more)


@pytest.fixture
def clean(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch, made())


@pytest.fixture
def failing(monkeypatch: pytest.MonkeyPatch) -> Watched:
    return Watched(monkeypatch, made(wrong_layer=1))


class TestRuns:
    def test_of_a_diff_that_passes_are_those_of_the_comparison(
        self, clean: Watched, tmp_path: Path
    ) -> None:
        clean.experiment(tmp_path).diff()
        assert clean.names == COMPARED

    def test_know_how_many_follow(self, failing: Watched, tmp_path: Path) -> None:
        failing.experiment(tmp_path, perturbed_runs=2, repeat_reference=True).diff()
        assert [run.then for run in failing.runs] == [4, 3, 2, 1, 0, 3, 2, 1, 0]

    def test_of_an_isolation_alone_know_it_too(self, clean: Watched, tmp_path: Path) -> None:
        clean.experiment(tmp_path).isolate()
        assert [run.then for run in clean.runs] == [3, 2, 1, 0]

    def test_of_a_diff_that_fails_reuse_the_candidate(
        self, failing: Watched, tmp_path: Path
    ) -> None:
        failing.experiment(tmp_path).diff()
        assert failing.names == [*COMPARED, *ISOLATED]

    def test_of_an_isolation_are_all_used(self, clean: Watched, tmp_path: Path) -> None:
        """No run whose trace nobody reads: neither a plain reference nor a perturbed one."""
        clean.experiment(tmp_path).isolate()
        assert clean.names == ["candidate", *ISOLATED]
        read = {path for paths in (*clean.plans, *clean.judged) for path in paths}
        assert {run.folder for run in clean.runs} <= read

    def test_unused_ones_would_be_seen(self, clean: Watched, tmp_path: Path) -> None:
        experiment = clean.experiment(tmp_path)
        experiment.compare()
        clean.judged.clear()
        experiment.isolate(candidate=tmp_path / "candidate")
        read = {path for paths in (*clean.plans, *clean.judged) for path in paths}
        assert {run.name for run in clean.runs if run.folder not in read} == {
            "reference",
            "perturbed-1",
        }

    def test_are_told_what_is_done_to_them(self, clean: Watched, tmp_path: Path) -> None:
        clean.experiment(tmp_path, perturbed_runs=2, split_reductions=4, steps=3).isolate()
        plans = tmp_path / "isolation" / "plans"
        told = {run.name: run.settings for run in clean.runs}
        assert {settings.steps for settings in told.values()} == {3}
        assert [name for name, how in told.items() if how.tap] == ["isolation/reference"]
        assert {name: how.plan for name, how in told.items() if how.plan} == {
            "isolation/perturbed-1": plans / "reference",
            "isolation/perturbed-2": plans / "reference",
            "isolation/candidate": plans / "candidate",
        }
        noisy = {name: (how.noise_seed, how.split) for name, how in told.items() if how.noise_seed}
        assert noisy == {"isolation/perturbed-1": (1, 4), "isolation/perturbed-2": (2, 4)}

    @pytest.mark.parametrize("device", ["cpu", "NVIDIA H200"])
    def test_on_two_kinds_of_devices_have_the_noise_of_both(
        self, clean: Watched, tmp_path: Path, device: str
    ) -> None:
        def execute(run: TracedRun) -> None:
            clean(run)
            info = RankInfo(rank=0, world_size=1, device=device if run.work == "four" else "cpu")
            TraceWriter(local_path(run.folder), info)

        experiment = replace(clean.experiment(tmp_path), execute=execute)
        experiment.isolate(experiment.compare())
        noisy = {run.settings.other_kernels for run in clean.runs if run.settings.noise_seed}
        assert noisy == {device != "cpu"}
        assert not any(r.settings.other_kernels for r in clean.runs if not r.settings.noise_seed)

    def test_repeat_the_reference_where_that_is_asked_for(
        self, clean: Watched, tmp_path: Path
    ) -> None:
        clean.experiment(tmp_path, repeat_reference=True).compare()
        assert clean.names == ["reference", "candidate", "perturbed-1", "repeated"]

    def test_a_perturbed_one_that_dies_leaves_what_can_be_said(
        self, clean: Watched, tmp_path: Path
    ) -> None:
        def execute(run: TracedRun) -> None:
            clean(run)
            if run.settings.noise_seed is not None:
                raise CommandFailed("it died of noise")

        result = replace(clean.experiment(tmp_path), execute=execute).compare()
        assert clean.names == ["reference", "candidate", "perturbed-1"]
        assert clean.judged == [(tmp_path / "reference", tmp_path / "candidate")]
        note = result.notes[-1]
        assert (note.topic, note.text) == (Topic.NO_EVIDENCE, "it died of noise")


def train(scale: float = 1.0) -> None:
    tiny_train.main(["--light", "--scale", str(scale)])


def train_badly() -> None:
    raise ValueError("the loader is on fire")


def train_nothing() -> None:
    """A function that forgets to attach."""


@pytest.fixture(scope="module")
def pool() -> Any:
    made = WorkerPool()
    yield made
    made.close()


class TestFunctions:
    def diff(self, candidate: Function, folder: Path, pool: WorkerPool) -> CheckResult:
        return ttrace.diff(Function(train), candidate, out=folder, execute=LocalExecutor(pool))

    def test_that_train_the_same_are_equivalent(self, pool: WorkerPool, tmp_path: Path) -> None:
        result = self.diff(Function(train), tmp_path / "out", pool)
        assert result.outcome is Outcome.EQUIVALENT
        assert {path.name for path in (tmp_path / "out").iterdir()} == set(COMPARED)

    def test_that_differ_are_isolated(self, pool: WorkerPool, tmp_path: Path) -> None:
        result = self.diff(Function(train, arguments=(1.5,)), tmp_path / "out", pool)
        assert str(result).startswith("NOT EQUIVALENT: second, forward")
        assert result.isolation is not None
        assert result["step0/second:output.0"].verdict.is_failure

    def test_that_fail_say_why(self, pool: WorkerPool, tmp_path: Path) -> None:
        with pytest.raises(CommandFailed, match=r"(?s)candidate function.*loader is on fire"):
            self.diff(Function(train_badly), tmp_path / "out", pool)

    def test_that_record_nothing_are_told_how(self, pool: WorkerPool, tmp_path: Path) -> None:
        with pytest.raises(CommandFailed, match=r"recorded nothing.*ttrace\.attach"):
            self.diff(Function(train_nothing), tmp_path / "out", pool)

    def test_are_compared_with_commands(self, pool: WorkerPool, tmp_path: Path) -> None:
        trace = tiny_train.record(tmp_path / "trace", "--light")
        copied = ["sh", "-c", f'cp -r {trace}/. "$TTRACE_OUT"']
        result = ttrace.diff(
            Function(train), copied, out=tmp_path / "out", execute=LocalExecutor(pool)
        )
        assert result.outcome is Outcome.EQUIVALENT

    def test_need_a_folder_of_their_own(self, pool: WorkerPool, tmp_path: Path) -> None:
        (tmp_path / "thesis.txt").write_text("precious")
        with pytest.raises(UsageError, match="never overwritten"):
            self.diff(Function(train), tmp_path, pool)

    @pytest.mark.flow
    def test_on_more_ranks_than_workers_get_more_workers(self) -> None:
        pool = WorkerPool(1)
        try:
            assert pool.run(1, rank) == [0]
            assert pool.run(2, rank) == [0, 1]
        finally:
            pool.close()


def rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()
