from __future__ import annotations

import os
import shutil
import signal
import socket
import sys
import threading
from pathlib import Path
from unittest import mock

import pytest
import torch

from tests.support import tiny_train
from tests.support.invoking import Outcome, invoke, replay
from tests.support.launching import all_time_is_over_when, failure, run, says
from tests.support.processes import is_running, wait_until
from ttrace.capture.settings import NOISE_SEED, OUT, STEPS
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import UsageError
from ttrace.lab import launch
from ttrace.lab.launch import prepare_folder
from ttrace.trace.progress import read_refusals
from ttrace.trace.writer import TraceWriter

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "good"
    tiny_train.record(folder)
    tiny_train.record(folder.with_name("good-noisy"), noise_seed=1)
    return folder


class TestCommand:
    def test_is_told_where_and_what_to_record(self, trace: Path, tmp_path: Path) -> None:
        folder = tmp_path / "out"
        says = f"echo ${OUT} ${STEPS} ${NOISE_SEED}.; {replay(trace)}"
        run(says, folder, steps=3, noise_seed=7)
        assert (folder / "output.log").read_text() == f"{folder} 3 7.\n"

    def test_inherits_no_noise(
        self, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv(NOISE_SEED, "7")
        says = f"echo x${{{NOISE_SEED}}}x; {replay(trace)}"
        run(says, tmp_path / "out")
        assert (tmp_path / "out" / "output.log").read_text() == "xx\n"

    def test_has_an_empty_standard_input(self, trace: Path, tmp_path: Path) -> None:
        made = run(f"cat; {replay(trace)}", tmp_path / "out")
        assert made.log.read_text() == ""

    def test_of_ttrace_run_is_not_seen_by_a_shell(self, trace: Path, tmp_path: Path) -> None:
        script = f'echo "$1"; {replay(trace)}'
        command = ("--", "sh", "-c", script, "sh", "$HOME; --out *")
        invoke("run", "--out", tmp_path / "out", *command).require(0, "39 tensors from 1 of 1")
        assert (tmp_path / "out" / "output.log").read_text() == "$HOME; --out *\n"


class TestFailure:
    def test_shows_the_exit_code_and_the_last_lines(self, tmp_path: Path) -> None:
        text = failure("seq 1 50; echo loader on fire >&2; exit 3", tmp_path / "out")
        assert text.startswith("the candidate command ended with exit code 3.")
        assert str(tmp_path / "out" / "output.log") in text
        assert text.endswith("49\n50\nloader on fire")
        assert "\n31\n" not in text

    def test_names_the_signal(self, tmp_path: Path) -> None:
        text = failure("echo almost; kill -SEGV $$", tmp_path / "out")
        assert "the candidate command was killed by SIGSEGV." in text
        assert text.endswith("almost")

    def test_names_the_signal_that_a_shell_saw(self, tmp_path: Path) -> None:
        text = failure("sh -c 'kill -ILL $$'; exit $?", tmp_path / "out")
        assert "the candidate command ended with exit code 132 (SIGILL in a shell)." in text

    def test_of_a_command_whose_folder_was_removed(self, tmp_path: Path) -> None:
        out = tmp_path / "out"
        for end in ("true", "exit 3"):
            outcome = invoke("run", "--out", out, "--", "sh", "-c", f"rm -r {out}; {end}")
            outcome.require(
                2, f"Its output in {out / 'output.log'} is gone", "something removed it"
            )

    def test_of_a_silent_command_says_that_it_was_silent(self, tmp_path: Path) -> None:
        assert failure("exit 3", tmp_path / "out").endswith("output.log (empty)")

    def test_of_torchrun_shows_what_the_rank_said(self, tmp_path: Path) -> None:
        script = tmp_path / "train.py"
        script.write_text("raise ValueError('the very cause')\n")
        torchrun = "-m torch.distributed.run --standalone --nproc-per-node 1"
        text = failure(f"{sys.executable} {torchrun} {script}", tmp_path / "out")
        assert text.splitlines()[-1].endswith("ValueError: the very cause")

    def test_of_a_command_that_recorded_nothing_says_what_to_add(self, tmp_path: Path) -> None:
        text = failure("echo trained", tmp_path / "out")
        assert "ended well but recorded nothing" in text
        assert "ttrace.attach(model, optimizer)" in text
        assert text.endswith("trained")

    def test_of_a_command_that_records_is_none(self, trace: Path, tmp_path: Path) -> None:
        run(replay(trace), tmp_path / "out")

    def test_to_start_leaves_the_folder_for_the_next_try(self, trace: Path, tmp_path: Path) -> None:
        out = ("run", "--out", tmp_path / "out")
        outcome = invoke(*out, "--", "no-such-program", "--a b")
        words = ("could not be started", "No such file or directory", "no-such-program '--a b'")
        outcome.require(2, *words)
        invoke(*out, "--", "sh", "-c", replay(trace)).require(0)

    def test_of_output_that_is_not_text(self, tmp_path: Path) -> None:
        text = failure(r"printf 'f.py:100: \377 [red]x[/]\n'; exit 1", tmp_path / "out")
        assert text.endswith("f.py:100: � [red]x[/]")
        command = r"printf 'f.py:100: [red]x[/]\n'; exit 1"
        outcome = invoke("run", "--out", tmp_path / "out2", "--", "sh", "-c", command)
        outcome.require(2, "f.py:100: [red]x[/]\n")

    def test_of_one_run_ends_the_diff_and_keeps_its_traces(
        self, trace: Path, tmp_path: Path
    ) -> None:
        commands = ("--reference", replay(trace), "--candidate", "exit 3")
        outcome = invoke("diff", *commands, "--out", tmp_path / "out")
        outcome.require(2, "the candidate command ended with exit code 3")
        assert {path.name for path in (tmp_path / "out").iterdir()} == {
            "reference",
            "candidate",
        }
        invoke("show", tmp_path / "out" / "reference").require(0, "39 tensors")


class TestScript:
    """Real scripts; each pays for importing torch."""

    def run(self, flag: str, folder: Path) -> Outcome:
        script = Path(tiny_train.__file__)
        paths = os.pathsep.join([str(script.parents[2] / "src"), os.environ.get("PYTHONPATH", "")])
        with mock.patch.dict(os.environ, {"PYTHONPATH": paths}):
            return invoke("run", "--out", folder, "--", sys.executable, script, "--light", flag)

    def test_that_is_killed_leaves_a_trace_that_can_be_read(
        self, trace: Path, tmp_path: Path
    ) -> None:
        out = tmp_path / "out"
        self.run("--kill", out).require(2, "the traced command was killed by SIGKILL")
        invoke("show", out).require(0, "unfinished ranks 0", "step0/second:output.0")
        invoke("check", trace, out).require(2, "did not come to the end of the last step")

    def test_that_does_not_attach_is_told_how(self, tmp_path: Path) -> None:
        self.run("--no-attach", tmp_path / "out").require(2, "ttrace.attach(", "loss 1.")


class TestHang:
    """The shell is the launcher, `sleep` is a rank; the log has the rank's process id."""

    @pytest.fixture(autouse=True)
    def short_grace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(launch, "GRACE_SECONDS", 1.0)

    def rank(self, folder: Path) -> int:
        return int((folder / "output.log").read_text().split()[0])

    @pytest.mark.parametrize(
        "command",
        [
            "sleep 600 & echo $!; wait",
            "trap '' TERM; sleep 600 & echo $!; wait",
            "setsid sh -c 'echo $$; sleep 600' & wait",
            "setsid sh -c 'trap \"\" TERM; echo $$; sleep 600 & wait' & wait",
        ],
        ids=["plain", "deaf", "own session", "deaf in own session"],
    )
    def test_is_ended_with_all_ranks(
        self, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        all_time_is_over_when(says(tmp_path / "out"), monkeypatch)
        text = failure(command, tmp_path / "out", timeout_seconds=3.0)
        assert "did not end within 3 s and was stopped" in text
        assert "Raise --timeout" in text
        rank = self.rank(tmp_path / "out")
        wait_until(lambda: not is_running(rank))

    def test_a_command_within_its_time_is_not_stopped(self, trace: Path, tmp_path: Path) -> None:
        run(f"sleep 0.3; {replay(trace)}", tmp_path / "out", timeout_seconds=300)

    def test_from_the_command_line(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        all_time_is_over_when(says(tmp_path / "out"), monkeypatch)
        out = ("--out", tmp_path / "out", "--timeout", "3")
        outcome = invoke("run", *out, "--", "sh", "-c", "echo waiting for rank 3; sleep 600")
        outcome.require(2, "did not end within 3 s", "waiting for rank 3")

    @pytest.mark.parametrize(
        ("sign", "code"), [(signal.SIGTERM, 143), (signal.SIGINT, 130), (signal.SIGHUP, 129)]
    )
    def test_ending_ttrace_ends_the_command(
        self, sign: signal.Signals, code: int, tmp_path: Path
    ) -> None:
        log = tmp_path / "out" / "output.log"

        def interrupt() -> None:
            wait_until(lambda: log.exists() and log.read_text().endswith("\n"))
            assert is_running(self.rank(log.parent))
            os.kill(os.getpid(), sign)

        other = threading.Thread(target=interrupt)
        other.start()
        rank = "sleep 600 & echo $!; wait"
        # A shell that starts tests in the background lets them ignore interrupts.
        before = signal.signal(signal.SIGINT, signal.default_int_handler)
        hung_up = signal.signal(signal.SIGHUP, signal.SIG_DFL)
        try:
            outcome = invoke("run", "--out", log.parent, "--timeout", "300", "--", "sh", "-c", rank)
        finally:
            signal.signal(signal.SIGINT, before)
            signal.signal(signal.SIGHUP, hung_up)
        other.join()
        outcome.require(code)
        wait_until(lambda: not is_running(self.rank(log.parent)))


class TestFolder:
    def test_an_empty_one_is_used(self, trace: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        out = ("run", "--out", tmp_path / "out", "--")
        invoke(*out, "sh", "-c", replay(trace)).require(0)

    def test_the_current_one_is_used(
        self, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        invoke("run", "--out", ".", "--", "sh", "-c", replay(trace)).require(0)
        assert {path.name for path in tmp_path.iterdir()} == {"output.log", "rank-00000"}

    @pytest.mark.parametrize("command", ["run", "diff", "demo"])
    def test_one_with_files_is_refused_and_untouched(self, command: str, tmp_path: Path) -> None:
        kept = tmp_path / "out" / "thesis.txt"
        kept.parent.mkdir()
        kept.write_text("precious")
        more = {
            "run": ("--", "true"),
            "diff": ("--reference", "true", "--candidate", "true"),
            "demo": (),
        }[command]
        outcome = invoke(command, "--out", kept.parent, *more)
        outcome.require(3, f"{kept.parent} exists and is not an empty folder", "--out")
        assert [path.name for path in kept.parent.iterdir()] == ["thesis.txt"]
        assert kept.read_text() == "precious"
        assert [path.name for path in tmp_path.iterdir()] == ["out"]

    def test_a_file_in_the_way_is_refused(self, tmp_path: Path) -> None:
        file = tmp_path / "out"
        file.write_text("precious")
        with pytest.raises(UsageError, match="is not an empty folder"):
            prepare_folder(file)
        with pytest.raises(UsageError, match=r"cannot write to .*: Not a directory; choose"):
            prepare_folder(file / "inside")
        assert file.read_text() == "precious"

    def test_one_that_cannot_be_made_is_refused(self) -> None:
        outcome = invoke("run", "--out", "/proc/ttrace", "--", "true")
        outcome.require(3, "cannot write to /proc/ttrace", "choose another folder with --out")


class TestSharedFolder:
    """Several launchers of one run, on several nodes, write into one folder."""

    @pytest.fixture
    def ranks(self, tmp_path: Path) -> Path:
        """The trace of a run of two ranks, one folder for each node."""
        for rank in range(2):
            info = RankInfo(rank=rank, world_size=2)
            writer = TraceWriter(tmp_path / f"node{rank}", info)
            record = Record(
                id=TensorId.parse(f"step0/layer{rank}:output.0"),
                rank=rank,
                sequence=0,
                dtype="float32",
                shape=(3,),
            )
            writer.write(record, torch.ones(3))
            writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
        return tmp_path

    def launch(self, ranks: Path, node: int, *options: str, folder: str = "out") -> Outcome:
        """What torchrun on one node leaves; the copy refuses to overwrite, as a rank does."""
        copied = f'cp -rn {ranks}/node{node}/. "$TTRACE_OUT"; echo from {node}'
        with mock.patch.object(socket, "gethostname", return_value=f"node{node}"):
            return invoke("run", *options, "--out", ranks / folder, "--", "sh", "-c", copied)

    def test_is_written_by_all_of_them(self, ranks: Path) -> None:
        self.launch(ranks, 0, "--shared").require(0, "1 rank so far")
        self.launch(ranks, 1, "--shared", "--json", "-").require(0)
        invoke("show", ranks / "out").require(0, "2 of 2", "step0/layer1:output.0")
        logs = sorted((ranks / "out").glob("output-node*.log"))
        assert [log.read_text() for log in logs] == ["from 0\n", "from 1\n"]

    def test_needs_the_word_of_the_user(self, ranks: Path) -> None:
        self.launch(ranks, 0).require(2, "missing ranks [1]", "give --shared to each of them")
        self.launch(ranks, 1).require(3, "exists and is not an empty folder", "--shared")

    def test_with_other_files_is_refused(self, ranks: Path) -> None:
        (ranks / "out").mkdir()
        (ranks / "out" / "thesis.txt").write_text("precious")
        self.launch(ranks, 0, "--shared").require(3, "traces are never overwritten")

    def test_that_one_launcher_wrote_alone_is_refused(self, trace: Path, ranks: Path) -> None:
        """Its log shows that the trace there is of another run."""
        invoke("run", "--out", ranks / "out", "--", "sh", "-c", replay(trace)).require(0)
        self.launch(ranks, 1, "--shared").require(3, "traces are never overwritten")

    def test_a_rank_that_is_there_is_never_overwritten(self, trace: Path, tmp_path: Path) -> None:
        (tmp_path / "out").mkdir()
        shutil.copytree(trace / "rank-00000", tmp_path / "out" / "rank-00000")
        before = (tmp_path / "out" / "rank-00000" / "manifest.json").read_bytes()
        tiny_train.record(tmp_path / "out")
        assert "a trace is never overwritten" in read_refusals(tmp_path / "out")[0]
        assert (tmp_path / "out" / "rank-00000" / "manifest.json").read_bytes() == before
