"""A log is bounded on the disk while a command writes it, and in memory when it is read."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest

from tests.support import tiny_train
from tests.support.invoking import invoke, replay
from tests.support.launching import failure, run
from ttrace.capture.settings import Settings
from ttrace.lab import launch, supervisor
from ttrace.lab.run import TracedRun

MIB = 1 << 20
KEPT = supervisor._KEPT_FIRST_BYTES + supervisor._KEPT_LAST_BYTES


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces") / "good"
    tiny_train.record(folder)
    return folder


def writes(mib: int) -> str:
    return f"head -c {mib}M /dev/zero | tr '\\0' x"


@pytest.mark.flow
class TestLongLog:
    def test_keeps_how_it_began_and_how_it_ended(self, trace: Path, tmp_path: Path) -> None:
        command = f"echo began; {writes(90)}; {writes(90)}; echo; echo ended; {replay(trace)}"
        said = run(command, tmp_path / "out").log.read_bytes()
        left_out = 180 * MIB + len(b"began\n\nended\n") - KEPT
        note = f"\nttrace: {left_out:,} bytes of output were here and are not kept\n".encode()
        assert (
            said
            == (b"began\n" + b"x" * (supervisor._KEPT_FIRST_BYTES - len(b"began\n")) + note)
            + b"x" * (supervisor._KEPT_LAST_BYTES - len(b"\nended\n"))
            + b"\nended\n"
        )

    def test_takes_no_more_of_the_disk_while_it_grows(self, trace: Path, tmp_path: Path) -> None:
        space = 'stat -c %b "$TTRACE_OUT/output.log"'
        command = f"{writes(300)}; sleep 2; echo; {space}; {replay(trace)}"
        last = run(command, tmp_path / "out").log.read_bytes().splitlines()[-1]
        assert int(last) * 512 < KEPT + supervisor._SPARED_BYTES + 2 * MIB

    def test_ends_with_the_words_of_ttrace(
        self, trace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(launch, "PATIENCE_SECONDS", 0.3)
        command = f"{writes(100)}; {replay(trace)}; sleep 600"
        log = run(command, tmp_path / "out").log
        assert log.stat().st_size < KEPT + 1000
        assert log.read_bytes()[-200:].endswith(b"--run-to-end lets it go on\n")

    def test_that_is_not_too_long_is_whole(self, trace: Path, tmp_path: Path) -> None:
        log = run(f"{writes(65)}; {replay(trace)}", tmp_path / "out").log
        assert log.stat().st_size == 65 * MIB

    def test_of_one_line_is_shown_by_its_start(self, tmp_path: Path) -> None:
        said = failure(f"{writes(100)}; exit 1", tmp_path / "out")
        assert said.endswith(f"x... ({MIB - 2000:,} characters more)")
        assert len(said) < 3000


class TestTail:
    def tail(self, folder: Path, text: bytes) -> str:
        made = TracedRun(name="candidate", work="true", settings=Settings(folder=folder))
        made.log.write_bytes(text)
        return launch.last_lines(made.log)

    def test_of_a_long_log_takes_little_memory(self, tmp_path: Path) -> None:
        log = TracedRun(name="a", work="true", settings=Settings(folder=tmp_path)).log
        with log.open("wb") as file:
            file.truncate(1 << 32)  # a hole: as a log has it that a supervisor could not shorten
        tracemalloc.start()
        try:
            launch.last_lines(tmp_path / "output.log")
            assert tracemalloc.get_traced_memory()[1] < 32 * MIB
        finally:
            tracemalloc.stop()

    def test_has_the_steps_of_a_progress_bar_as_lines(self, tmp_path: Path) -> None:
        said = self.tail(tmp_path, b"".join(b"step %d\r" % step for step in range(50)))
        assert said.splitlines()[1:] == [f"step {step}" for step in range(30, 50)]

    def test_leaves_out_what_torchrun_adds(self, tmp_path: Path) -> None:
        text = f"cause\n[{launch._TORCHRUN_SUMMARY}:5]\nmore\n".encode()
        assert self.tail(tmp_path, text).splitlines()[1:] == ["cause"]

    @pytest.mark.flow
    def test_reaches_the_terminal_as_text(self, tmp_path: Path) -> None:
        says = r"printf 'a\033[2J\n::error::b\n\302\233c\n'; exit 1"
        outcome = invoke("run", "--out", tmp_path / "out", "--", "sh", "-c", says)
        outcome.require(2, "a\\x1b[2J\n", "\\::error::b\n", "\\x9bc\n")
