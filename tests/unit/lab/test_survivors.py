"""Whatever a command started is gone when the run is over, however it came to its end."""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support import tiny_train
from tests.support.invoking import replay
from tests.support.launching import all_time_is_over_when, failure, run, says
from tests.support.processes import is_running, starts_survivors, survivors, wait_until
from ttrace.errors import CommandFailed
from ttrace.lab import launch, supervisor

pytestmark = pytest.mark.flow

PR_GET_CHILD_SUBREAPER = 37
# The command line with less patience for those that do not listen.
IMPATIENT = "from ttrace.lab import launch; launch.GRACE_SECONDS = 0.3"
MAIN = f"{IMPATIENT}; from ttrace.cli import main; main()"


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "good"
    tiny_train.record(folder)
    return folder


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    """Where survivors write who they are; those of a test that fails are ended."""
    folder = tmp_path / "pids"
    yield folder
    for path in folder.glob("*.pid"):
        if is_running(int(path.read_text())):
            os.kill(int(path.read_text()), signal.SIGKILL)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(launch, "GRACE_SECONDS", 0.3)
    monkeypatch.setattr(launch, "PATIENCE_SECONDS", 0.3)
    monkeypatch.setattr(launch, "_LOOK_SECONDS", 0.05)


class TestEnd:
    def test_they_run_while_the_command_does(self, pids: Path) -> None:
        """The companion: where nobody ends them, all are seen to be running."""
        subprocess.run(["sh", "-c", starts_survivors(pids)], check=True)
        assert len(survivors(pids)) == 5

    def test_of_a_command_that_ends_well(self, trace: Path, pids: Path, tmp_path: Path) -> None:
        made = run(f"{starts_survivors(pids)}; {replay(trace)}", tmp_path / "out")
        assert survivors(pids) == {}
        said = made.log.read_text()
        assert "ttrace: the command ended and left these running" in said
        assert said.count("sleep (process ") == 5

    def test_of_a_command_that_fails(self, pids: Path, tmp_path: Path) -> None:
        said = failure(f"{starts_survivors(pids)}; exit 3", tmp_path / "out")
        assert "ended with exit code 3" in said
        assert survivors(pids) == {}

    def test_of_a_command_that_takes_too_long(
        self, pids: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        command = f"{starts_survivors(pids)}; echo all run; sleep 600"
        all_time_is_over_when(says(tmp_path / "out", "all run"), monkeypatch)
        assert "did not end within" in failure(command, tmp_path / "out")
        assert survivors(pids) == {}

    def test_after_the_last_step(self, trace: Path, pids: Path, tmp_path: Path) -> None:
        command = f"{starts_survivors(pids)}; {replay(trace)}; sleep 600"
        assert "steps are recorded" in run(command, tmp_path / "out").log.read_text()
        assert survivors(pids) == {}

    def test_leaves_no_word_where_nothing_was_left(self, trace: Path, tmp_path: Path) -> None:
        made = run(f"(true &); {replay(trace)}", tmp_path / "out")
        assert made.log.read_text() == ""

    def test_waits_for_what_a_command_says_at_its_end(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(launch, "GRACE_SECONDS", 120.0)
        trap = "trap 'echo rank 3 hangs in all_reduce; exit 1' TERM"
        all_time_is_over_when(says(tmp_path / "out", "ready"), monkeypatch)
        said = failure(f"{trap}; echo ready; sleep 600 & wait", tmp_path / "out")
        assert said.endswith("rank 3 hangs in all_reduce")


@pytest.mark.parametrize(
    ("sign", "code"),
    [
        (signal.SIGINT, 130),
        (signal.SIGTERM, 143),
        (signal.SIGHUP, 129),
        (signal.SIGKILL, -signal.SIGKILL),
    ],
)
def test_a_signal_to_ttrace_ends_them(
    sign: signal.Signals, code: int, pids: Path, tmp_path: Path
) -> None:
    command = ("sh", "-c", f"echo $$ > {tmp_path}/command; {starts_survivors(pids)}; sleep 600")
    process = started(MAIN, "run", "--out", str(tmp_path / "out"), "--", *command)
    wait_until(lambda: len(list(pids.glob("*.pid"))) == 5, seconds=60)
    process.send_signal(sign)
    assert process.wait(120) == code
    everyone = [int((tmp_path / "command").read_text()), *survivors(pids).values()]
    # Nobody was there to wait for the end after SIGKILL.
    seconds = 60.0 if sign is signal.SIGKILL else 0.0
    wait_until(lambda: not any(map(is_running, everyone)), seconds)


def started(program: str, *arguments: str) -> subprocess.Popen[bytes]:
    # A shell that starts tests in the background lets them ignore interrupts, and nohup hangups.
    heeding = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"
    heeding += "; signal.signal(signal.SIGHUP, signal.SIG_DFL)"
    command = [sys.executable, "-c", f"{heeding}; {program}", *arguments]
    return subprocess.Popen(command, start_new_session=True)


def test_a_hangup_that_is_ignored_ends_nothing(tmp_path: Path) -> None:
    """nohup ttrace run ... goes on when its terminal is closed, and so does the command."""
    ready = tmp_path / "ready"
    command = ("sh", "-c", f"touch {ready}; sleep 1; kill -HUP $$; echo went on")
    program = f"import signal; signal.signal(signal.SIGHUP, signal.SIG_IGN); {MAIN}"
    process = started(program, "run", "--out", str(tmp_path / "out"), "--", *command)
    wait_until(ready.exists, seconds=60)
    process.send_signal(signal.SIGHUP)
    assert process.wait(120) == 2
    assert (tmp_path / "out" / "output.log").read_text() == "went on\n"


def parent(pid: int) -> int:
    return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[1])


class TestTheProcessThatAsks:
    def test_keeps_its_own_children_handlers_and_flags(self, trace: Path, tmp_path: Path) -> None:
        mine = subprocess.Popen(["sleep", "600"])
        try:
            numbers = [*set(signal.Signals) - {signal.SIGKILL, signal.SIGSTOP}]
            before = [signal.getsignal(number) for number in numbers]
            run(f"sleep 600 & {replay(trace)}", tmp_path / "out")
            assert mine.poll() is None
            assert [signal.getsignal(number) for number in numbers] == before
            flag = ctypes.c_int(-1)
            ctypes.CDLL(None).prctl(PR_GET_CHILD_SUBREAPER, ctypes.byref(flag), 0, 0, 0)
            assert flag.value == 0
        finally:
            mine.kill()
            mine.wait()

    def test_is_told_when_the_supervisor_is_killed(self, tmp_path: Path) -> None:
        command = "echo $$; kill -KILL $PPID; exec sleep 600"
        with pytest.raises(CommandFailed, match="supervisor of the command ended before"):
            run(command, tmp_path / "out")
        pid = int((tmp_path / "out" / "output.log").read_text())
        wait_until(lambda: not is_running(pid))


class TestSupervisor:
    """Alone: as it is without /proc, and what it does to what it starts."""

    def supervise(
        self, command: list[str], log: Path, *, change: str = ""
    ) -> subprocess.Popen[bytes]:
        program = f"import os, sys; import {supervisor.__name__} as s; {change}"
        program += "; s._supervise(os.getppid(), 0.3, sys.argv[1:])"
        with log.open("x+b") as file:
            return subprocess.Popen(
                [sys.executable, "-c", program, *command], stdout=subprocess.PIPE, stderr=file
            )

    @pytest.mark.parametrize("deaf", ["", "trap '' TERM; "])
    def test_without_proc_ends_the_process_group(self, tmp_path: Path, deaf: str) -> None:
        log = tmp_path / "log"
        command = ["sh", "-c", f"{deaf}sleep 600 & echo $!; exit 5"]
        process = self.supervise(command, log, change="s._PROC = '/nowhere'")
        assert process.communicate(timeout=120)[0] == b"ended 5\n"
        started = int(log.read_text().split()[0])
        wait_until(lambda: not is_running(started), seconds=60.0)  # it cannot see when it is gone

    @pytest.mark.parametrize("is_to_end", [False, True])
    def test_hears_in_one_moment_that_the_command_ended_and_that_all_is_to_end(
        self, is_to_end: bool, tmp_path: Path
    ) -> None:
        woken, wake = os.pipe()
        os.write(wake, bytes([signal.SIGCHLD, *([signal.SIGTERM] if is_to_end else [])]))
        child = os.posix_spawn("/bin/sh", ["sh", "-c", "exit 5"], os.environ)
        os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
        with (tmp_path / "log").open("x+b") as log:
            found = supervisor._watch(child, os.getppid(), woken, log.fileno())
        assert found == (5, is_to_end)
        os.close(woken)
        os.close(wake)

    def test_says_why_no_process_could_be_made(self, tmp_path: Path) -> None:
        change = "s._start = lambda *_: os.kill(2**22 + 1, 0)"
        process = self.supervise(["true"], tmp_path / "log", change=change)
        assert process.communicate(timeout=120)[0] == b"failed %d\n" % errno.ESRCH

    def test_spares_a_process_that_has_the_id_of_another(self) -> None:
        mine = subprocess.Popen(["sleep", "600"])
        try:
            (process,) = (p for p in supervisor.descendants(os.getpid()) if p[0] == mine.pid)
            supervisor.end(lambda: {(mine.pid, "0"): "sleep"}, signal.SIGKILL, 0.0)
            time.sleep(0.05)
            assert mine.poll() is None
            supervisor.end(lambda: {process: "sleep"}, signal.SIGKILL, 0.0)
            assert mine.wait(60) == -signal.SIGKILL
        finally:
            mine.kill()
            mine.wait()

    def test_tells_a_parent_before_its_children(self) -> None:
        sleepers = "sleep 600 & " * 8
        mine = subprocess.Popen(["sh", "-c", f"sh -c '{sleepers} wait' & wait"])
        below: supervisor.Alive = {}
        told: list[int] = []
        try:
            wait_until(lambda: len(supervisor.descendants(mine.pid)) == 9)
            below = supervisor.descendants(mine.pid)
            find = supervisor.descendants
            supervisor.end(lambda: find(mine.pid), 0, 0.0, lambda one, _: told.append(one[0]))
            assert parent(told[0]) == mine.pid
            assert [parent(pid) for pid in told[1:]] == [told[0]] * 8
        finally:
            mine.kill()
            mine.wait()
            supervisor.end(lambda: supervisor.running(below), signal.SIGKILL, 60.0)

    def test_finds_a_process_whose_first_thread_has_ended(self) -> None:
        lives = "import ctypes, threading, time; threading.Thread(target=time.sleep, args=(60,))"
        program = f"{lives}.start(); ctypes.CDLL(None).pthread_exit(None)"
        mine = subprocess.Popen([sys.executable, "-c", program])
        try:
            stat = Path(f"/proc/{mine.pid}/stat")
            wait_until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "Z")
            assert mine.pid in {pid for pid, _ in supervisor.descendants(os.getpid())}
        finally:
            mine.kill()
            mine.wait()

    def test_leaves_signals_as_a_command_expects_them(self, trace: Path, tmp_path: Path) -> None:
        masks = "grep -E '^Sig(Ign|Blk)' /proc/self/status"
        made = run(f"{masks}; {replay(trace)}", tmp_path / "out")
        plain = subprocess.run(["sh", "-c", masks], capture_output=True, text=True, check=True)
        assert made.log.read_text() == plain.stdout
