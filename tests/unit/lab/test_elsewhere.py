"""Runs whose ranks are started elsewhere, by launchers that do not wait for them."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support import tiny_train
from tests.support.invoking import invoke, replay
from tests.support.launching import Clock, all_time_is_over_when, says
from tests.support.made_traces import record_of
from tests.support.processes import is_running, wait_until
from ttrace.capture.settings import OUT, PACKED, Settings, unpacked
from ttrace.core.record import RankInfo, Summary
from ttrace.errors import CommandFailed, UsageError
from ttrace.lab import elsewhere
from ttrace.lab.launch import run_command
from ttrace.lab.options import Elsewhere
from ttrace.lab.run import TracedRun
from ttrace.trace.progress import (
    WorldStanding,
    last_step,
    read_death,
    standing,
    trail,
    write_refusal,
)
from ttrace.trace.reader import Trace
from ttrace.trace.writer import TraceWriter

pytestmark = pytest.mark.flow


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(elsewhere, "_LOOK_SECONDS", 0.05)
    monkeypatch.setattr(elsewhere, "_TELL_SECONDS", 0.0)
    monkeypatch.setattr(elsewhere, "PATIENCE_SECONDS", 0.2)


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "good"
    tiny_train.record(folder)
    tiny_train.record(folder.with_name("good-noisy"), noise_seed=1)
    return folder


@pytest.fixture
def ranks(tmp_path: Path) -> Path:
    """Of a world of 4: 0 ended, 1 was killed after step 0, 2 before it, 3 ended without a step."""
    folder = tmp_path / "ranks"
    for rank in range(4):
        writer = TraceWriter(folder, RankInfo(rank=rank, world_size=4))
        if rank != 2:
            writer.write(record_of(":loss", rank, ()), torch.ones(()))
            writer.end_step(0)
        if rank in (0, 3):
            steps = 1 if rank == 0 else 0
            writer.close(Summary(steps=steps, hooks_expected=0, hooks_fired=0))
    return folder


def launch(command: Any, folder: Path, *, asked: bool | None = True, **how: Any) -> TracedRun:
    where = {"queue_seconds": how.pop("queue_seconds", 300.0), "stop": how.pop("stop", None)}
    limits = {"timeout_seconds": how.pop("timeout_seconds", 300.0)}
    others = {name: how.pop(name) for name in ("to_end", "tell") if name in how}
    run = TracedRun(
        name="candidate",
        work=command,
        settings=Settings(folder=folder, **how),
        elsewhere=Elsewhere(asked=asked, **where),
        **limits,
        **others,
    )
    run_command(run, command)
    return run


def failure(command: Any, folder: Path, **how: Any) -> str:
    with pytest.raises(CommandFailed) as raised:
        launch(command, folder, **how)
    return str(raised.value)


def later(command: str, seconds: float = 0.3) -> str:
    """A launcher: it leaves a process that does this after a while, and returns at once."""
    return f"(sleep {seconds}; {command}) > /dev/null 2>&1 & echo job 17"


def copied(ranks: Path, *numbers: int) -> str:
    return "; ".join(f'cp -r {ranks}/rank-0000{number} "${OUT}"' for number in numbers)


class TestWaiting:
    def test_goes_on_when_the_command_has_ended(self, trace: Path, tmp_path: Path) -> None:
        made = launch(later(replay(trace)), tmp_path / "out")
        assert len(Trace.open(made.folder).by_id()) == 39
        assert made.log.read_text() == "job 17\n"

    def test_is_what_such_a_command_needs(self, trace: Path, tmp_path: Path) -> None:
        """The companion: taken for a run of its own, it has recorded nothing when it ends."""
        text = failure(later(replay(trace), 600), tmp_path / "out", asked=False)
        assert "recorded nothing" in text
        assert "say --elsewhere" in text

    def test_of_all_ranks(
        self, ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (ranks / "rank-00001").rename(tmp_path / "killed")
        news: list[str] = []
        all_time_is_over_when((tmp_path / "done").exists, monkeypatch)
        first = f"{copied(ranks, 0, 3)}; touch {tmp_path}/done"
        text = failure(later(first), tmp_path / "out", tell=news.append)
        assert "2 of 4 ranks have ended, 2 have not begun: ranks 1, 2 never began" in text
        assert news[0] == "no rank has begun"
        assert news[-1] == "2 of 4 ranks have ended, 2 have not begun"

    def test_names_ranks_that_died_with_their_last_step(
        self, ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (ranks / "rank-00003").rename(tmp_path / "unknown")
        out = tmp_path / "out"
        all_time_is_over_when((tmp_path / "done").exists, monkeypatch)
        begun = f"{copied(ranks, 0, 1, 2)}; touch {tmp_path}/done"
        text = failure(later(begun), out, timeout_seconds=2.0)
        assert text.startswith(
            "the candidate run was not over 2 s after its first rank had begun (--timeout): "
            "1 of 4 ranks have ended, 1 has not begun: rank 3 never began; rank 1 began, recorded "
            "step 0 as the last and did not end; rank 2 began, recorded no step and did not end."
        )
        assert "What the command has started elsewhere goes on" in text
        assert text.endswith("job 17")

    def test_names_ranks_that_ended_early(
        self, ranks: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        all_time_is_over_when((tmp_path / "done").exists, monkeypatch)
        ended = f"{copied(ranks, 0, 3)}; touch {tmp_path}/done"
        text = failure(later(ended), tmp_path / "out")
        assert "rank 3 ended early, after 0 of 1 steps" in text

    def test_ends_when_all_have_ended_with_fewer_steps(self, trace: Path, tmp_path: Path) -> None:
        launch(later(replay(trace)), tmp_path / "out", steps=3)
        command = ("sh", "-c", later(replay(trace)))
        outcome = invoke(
            "run", "--elsewhere", "--steps", 3, "--out", tmp_path / "o", "--", *command
        )
        outcome.require(2, "1 of 3 steps was made")

    def test_ends_when_nothing_appears(self, tmp_path: Path) -> None:
        text = failure(later("true", 600), tmp_path / "out", queue_seconds=0.4)
        assert text.startswith("no rank of the candidate run has begun within 0.4 s")
        for word in ("--queue-timeout", str(tmp_path / "out"), f"${PACKED}", "ttrace.attach"):
            assert word in text

    def test_in_a_queue_is_not_time_of_the_run(
        self, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Until a rank begins, every look at the clock finds that much time has passed."""
        out = tmp_path / "out"
        clock = Clock(lambda: not (out / "rank-00000").exists(), step=10.0)
        monkeypatch.setattr(elsewhere, "time", clock)
        monkeypatch.setattr(elsewhere, "_REST", 0)  # a look takes long by this clock
        launch(later(replay(trace)), out, timeout_seconds=2.0, queue_seconds=1e12)

    def test_in_a_queue_of_a_run_that_goes_on_with_its_trace(
        self, ranks: Path, trace: Path, tmp_path: Path
    ) -> None:
        """What an earlier run left is no sign of this one."""
        out = tmp_path / "out"
        out.mkdir()
        subprocess.run(["cp", "-r", ranks / "rank-00001", out], check=True)
        text = failure(later("true", 600), out, queue_seconds=0.4, resume=True)
        assert "no rank of the candidate run has begun" in text

    def test_is_over_at_once_where_the_command_fails(self, trace: Path, tmp_path: Path) -> None:
        touched = tmp_path / "stopped"
        text = failure("echo no such partition; exit 3", tmp_path / "out", stop=f"touch {touched}")
        assert text.startswith("the candidate command ended with exit code 3.")
        assert text.endswith("no such partition")
        assert not touched.exists()

    def test_is_over_where_the_command_fails_when_all_is_recorded(
        self, trace: Path, tmp_path: Path
    ) -> None:
        launch(f"{replay(trace)}; exit 3", tmp_path / "out")
        assert read_death(tmp_path / "out") == "ended with exit code 3"

    def test_is_over_at_once_where_a_process_could_not_be_traced(
        self, ranks: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "out").mkdir()
        write_refusal(tmp_path / "out", "no module is in it")
        text = failure(later("true"), tmp_path / "out")
        assert "could not be traced: no module is in it." in text

    def test_of_a_command_that_cannot_be_started(self, tmp_path: Path) -> None:
        text = failure(["no-such-launcher"], tmp_path / "out", stop=f"touch {tmp_path}/stopped")
        assert "could not be started" in text
        assert not (tmp_path / "stopped").exists()


class TestCommand:
    def test_that_goes_on_is_stopped_when_all_is_recorded(
        self, trace: Path, tmp_path: Path
    ) -> None:
        made = launch(f"{replay(trace)}; echo $$; exec sleep 600", tmp_path / "out")
        said = made.log.read_text()
        assert "all 1 steps are recorded" in said
        wait_until(lambda: not is_running(int(said.split()[0])))

    def test_that_is_to_run_to_its_end_does(self, trace: Path, tmp_path: Path) -> None:
        made = launch(f"{replay(trace)}; sleep 1; echo done", tmp_path / "out", to_end=True)
        assert made.log.read_text() == "done\n"

    @pytest.mark.parametrize("seconds", [0.3, 600], ids=["recorded", "in-vain"])
    def test_leaves_nothing_on_this_machine(
        self, trace: Path, tmp_path: Path, seconds: float, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        stays = f"sh -c 'echo $$ > {tmp_path}/pid; exec sleep 600' & "
        stays += f"while [ ! -s {tmp_path}/pid ]; do sleep 0.02; done; "
        if seconds == 600:
            all_time_is_over_when(says(tmp_path / "out", "job 17"), monkeypatch)
        try:
            launch(stays + later(replay(trace), seconds), tmp_path / "out")
        except CommandFailed:
            assert seconds == 600
        wait_until(lambda: not is_running(int((tmp_path / "pid").read_text())))


class TestStop:
    def test_reads_what_the_command_wrote(self, trace: Path, tmp_path: Path) -> None:
        stop = f"tail -n 1 > {tmp_path}/stopped; echo gone; exit 4"
        launch(later(replay(trace)), tmp_path / "out", stop=stop)
        assert (tmp_path / "stopped").read_text() == "job 17\n"
        said = (tmp_path / "out" / "output-stop.log").read_text()
        assert said == "gone\n\nttrace: the command of --stop ended with exit code 4\n"

    def test_follows_a_run_that_did_not_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        all_time_is_over_when(says(tmp_path / "out", "job 17"), monkeypatch)
        monkeypatch.setattr(elsewhere, "_STOP_SECONDS", 1e12)
        stop = f"cat > {tmp_path}/stopped"
        text = failure(later("true", 600), tmp_path / "out", stop=stop)
        assert (tmp_path / "stopped").read_text() == "job 17\n"
        assert f"The command of --stop was run: {tmp_path / 'out' / 'output-stop.log'}" in text

    def test_does_not_cut_off_what_is_to_run_to_its_end(self, trace: Path, tmp_path: Path) -> None:
        launch(later(replay(trace)), tmp_path / "out", stop="false", to_end=True)
        assert not (tmp_path / "out" / "output-stop.log").exists()

    def test_has_limited_time(
        self, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(elsewhere, "_STOP_SECONDS", 2.0)
        said_so = tmp_path / "out" / "output-stop.log"
        all_time_is_over_when(lambda: said_so.exists() and said_so.stat().st_size > 0, monkeypatch)
        launch(later(replay(trace)), tmp_path / "out", stop="echo $$; exec sleep 600")
        said = (tmp_path / "out" / "output-stop.log").read_text()
        assert "did not end within 2 s" in said
        wait_until(lambda: not is_running(int(said.split()[0])))

    def test_follows_a_command_that_waits_for_its_job(self, trace: Path, tmp_path: Path) -> None:
        """Which runs until it is stopped, as `sbatch --wait` of a long training does."""
        stop = f"cat > {tmp_path}/stopped"
        command = f"echo job 17; {replay(trace)}; exec sleep 600"
        launch(command, tmp_path / "out", asked=None, stop=stop)
        assert (tmp_path / "stopped").read_text() == "job 17\n"

    def test_of_a_command_that_waits_does_not_hide_that_nothing_was_recorded(
        self, tmp_path: Path
    ) -> None:
        text = failure("echo trained", tmp_path / "out", asked=None, stop="cat")
        assert "ended well but recorded nothing" in text

    def test_follows_an_interrupt(self, tmp_path: Path) -> None:
        def interrupt(_: str) -> None:
            raise KeyboardInterrupt

        stop = f"touch {tmp_path}/stopped"
        with pytest.raises(KeyboardInterrupt):
            launch(later("true", 600), tmp_path / "out", tell=interrupt, stop=stop)
        assert (tmp_path / "stopped").exists()


class TestStanding:
    def test_of_each_rank(self, ranks: Path) -> None:
        found = standing(ranks, WorldStanding())
        assert found == WorldStanding(world_size=4, ended={0: 1, 3: 0}, under_way=(1, 2))
        assert not found.is_over
        assert [last_step(ranks, rank) for rank in range(5)] == [0, 0, None, 0, None]

    def test_of_what_had_ended_is_not_read_again(self, ranks: Path) -> None:
        before = standing(ranks, WorldStanding())
        (ranks / "rank-00000" / "journal.jsonl").unlink()
        assert standing(ranks, before) == before

    def test_learns_the_size_of_the_world_from_a_manifest_that_comes_last(
        self, ranks: Path, tmp_path: Path
    ) -> None:
        folder = tmp_path / "out" / "rank-00000"
        folder.mkdir(parents=True)
        (folder / "journal.jsonl").write_bytes((ranks / "rank-00000/journal.jsonl").read_bytes())
        before = standing(folder.parent, WorldStanding())
        assert before == WorldStanding(world_size=None, ended={0: 1})
        (folder / "manifest.json").write_bytes((ranks / "rank-00000/manifest.json").read_bytes())
        assert standing(folder.parent, before) == WorldStanding(world_size=4, ended={0: 1})

    def test_of_what_is_no_rank_is_none(self, ranks: Path) -> None:
        before = standing(ranks, WorldStanding())
        (ranks / "rank-x").mkdir()
        (ranks / "rank-00001.part").mkdir()
        assert standing(ranks, WorldStanding()) == before

    @pytest.mark.parametrize("text", ["", "{", '{"world_size": -1}', '{"world_size": 1e300}'])
    def test_of_a_manifest_that_is_none_is_that_of_nobody(self, tmp_path: Path, text: str) -> None:
        (tmp_path / "rank-00000").mkdir()
        (tmp_path / "rank-00000" / "manifest.json").write_text(text)
        assert standing(tmp_path, WorldStanding()) == WorldStanding(under_way=(0,))

    def test_changes_with_every_line(self, ranks: Path) -> None:
        before = trail(ranks)
        assert trail(ranks) == before
        with (ranks / "rank-00002" / "journal.jsonl").open("ab") as file:
            file.write(b"{")
        assert trail(ranks) != before


class Scheduler(threading.Thread):
    """Starts what it finds in a folder, in an environment of its own: a stand-in for any other."""

    def __init__(self, folder: Path, words: list[str], environment: Mapping[str, str]) -> None:
        super().__init__()
        self.folder, self.words, self.environment = folder, words, environment
        self.started = 0
        self.is_over = threading.Event()

    def run(self) -> None:
        while not self.is_over.wait(0.05):
            for job in sorted(self.folder.glob("*.job")):
                found = {PACKED: job.read_text().strip()}
                job.unlink()
                self.started += 1
                subprocess.run(self.words, env={**self.environment, **found}, check=False)


def test_one_word_is_all_that_ranks_elsewhere_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A whole diff through a scheduler that hands on no environment, into a hostile folder."""
    spool, out = tmp_path / "spool", tmp_path / "my 'runs', $HOME \"x\" \\ ü"
    spool.mkdir()
    words = [sys.executable, tiny_train.__file__, "--light"]
    scheduler = Scheduler(spool, words, {"PYTHONPATH": os.pathsep.join(sys.path)})
    submit = f"echo ${PACKED} > {spool}/$$.part; mv {spool}/$$.part {spool}/$$.job"
    scheduler.start()
    try:
        outcome = invoke(
            *("diff", "--elsewhere", "--reference", submit, "--candidate", submit, "--out", out),
        )
    finally:
        scheduler.is_over.set()
        scheduler.join()
    outcome.require(0, "EQUIVALENT", "run 2 of 3: candidate: 1 of 1 rank has ended")
    assert scheduler.started == 3


def test_a_variable_that_was_replaced_too_early_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is empty in the candidate command"):
        launch(f"sbatch --export={PACKED}= job.sh", tmp_path / "out", asked=None)
    assert not (tmp_path / "out").exists()


def test_the_command_has_all_settings_in_one_word(trace: Path, tmp_path: Path) -> None:
    made = launch(f"echo ${PACKED}; {replay(trace)}", tmp_path / "out", steps=1, skip=2)
    told = unpacked({PACKED: made.log.read_text().strip()})
    assert Settings.from_environment(told) == made.settings
