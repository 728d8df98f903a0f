"""A command that goes on, or dies, when everything is recorded."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
import torch

from tests.support import tiny_train
from tests.support.invoking import invoke, replay
from tests.support.launching import run
from tests.support.processes import is_running, wait_until
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import CommandFailed
from ttrace.lab import launch
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "good"
    tiny_train.record(folder)
    tiny_train.record(folder.with_name("good-noisy"), noise_seed=1)
    return folder


class TestLastStep:
    """`sleep` is the rest of the training."""

    @pytest.fixture(autouse=True)
    def impatient(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launch, "PATIENCE_SECONDS", 0.3)
        monkeypatch.setattr(launch, "_LOOK_SECONDS", 0.05)

    def test_is_where_a_command_is_stopped(self, trace: Path, tmp_path: Path) -> None:
        made = run(f"{replay(trace)}; echo $$; sleep 600 & wait", tmp_path / "out")
        said = made.log.read_text()
        assert "all 1 steps are recorded" in said
        assert "--run-to-end" in said
        wait_until(lambda: not is_running(int(said.split()[0])))

    def test_of_a_script_is_the_last_that_was_asked_for(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        script = Path(tiny_train.__file__)
        paths = os.pathsep.join([str(script.parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
        monkeypatch.setenv("PYTHONPATH", paths)
        command = f"{sys.executable} {script} --light --steps 100000000"
        invoke("run", "--steps", "3", "--out", tmp_path / "out", "--", *command.split()).require(0)
        assert Trace.open(tmp_path / "out").steps == (0, 1, 2)

    def test_of_one_rank_is_not_that_of_the_world(self, tmp_path: Path) -> None:
        record = Record(
            id=TensorId.parse("step0/:loss"), rank=0, sequence=0, dtype="float32", shape=()
        )
        writer = TraceWriter(tmp_path / "trace", RankInfo(rank=0, world_size=2))
        writer.write(record, torch.ones(()))
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
        made = run(f"{replay(tmp_path / 'trace')}; sleep 1; echo done", tmp_path / "out")
        assert made.log.read_text() == "done\n"

    def test_may_be_passed(self, trace: Path, tmp_path: Path) -> None:
        command = ("sh", "-c", f"{replay(trace)}; sleep 1; echo done")
        invoke("run", "--run-to-end", "--out", tmp_path / "out", "--", *command).require(0)
        assert (tmp_path / "out" / "output.log").read_text() == "done\n"

    def test_is_waited_for_when_more_steps_were_asked_for(
        self, trace: Path, tmp_path: Path
    ) -> None:
        made = run(f"{replay(trace)}; sleep 1; echo done", tmp_path / "out", steps=2)
        assert made.log.read_text() == "done\n"

    def test_never_made_is_said_by_a_run(self, trace: Path, tmp_path: Path) -> None:
        command = ("sh", "-c", replay(trace))
        outcome = invoke("run", "--steps", "5", "--out", tmp_path / "out", "--", *command)
        outcome.require(2, "1 of 5 steps was made", "--steps")

    def test_before_a_death_is_enough(self, trace: Path, tmp_path: Path) -> None:
        dies = f"{replay(trace)}; kill -ABRT $$"
        commands = ("--reference", replay(trace), "--candidate", dies)
        outcome = invoke("diff", *commands, "--out", tmp_path / "out")
        outcome.require(0, "candidate run was killed by SIGABRT after all of its steps")

    def test_that_was_not_reached_makes_a_death_a_failure(
        self, trace: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(CommandFailed, match="ended with exit code 3"):
            run(f"{replay(trace)}; exit 3", tmp_path / "out", steps=2)
