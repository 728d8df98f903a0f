"""Names of a stranger on a real terminal, which obeys what it is sent: tmux says what it did."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

from tests.support.capturing import Calling, record
from tests.support.hostile import PAYLOADS, hostile
from ttrace.report.json_file import render

pytestmark = pytest.mark.browser

# Sets the title of the window, colours, clears, goes to the first line, hides the cursor.
NAME = PAYLOADS["terminal"].replace("\0", "") + "\x1b[?25l\x1b]2;owned\x1b\\\nforged: all is well"
SHOWN = r"\x1b]0;owned\x07\x1b[31m\x1b[2J"
OWN = {"0", "1", "2", "39", "49"}  # bold, dim, and the usual colours
ROOT = Path(__file__).parents[3]


class Screen:
    """A terminal of its own, in which a shell script has run to its end."""

    def __init__(self, folder: Path, script: str) -> None:
        (folder / "run.sh").write_text(f"{script}\necho; echo THE END\nsleep 600\n")
        self._tmux = ("tmux", "-S", str(folder / "socket"), "-f", "/dev/null")
        # As wide as the longest line: what is written is not cut into rows.
        size = ("-x", "9000", "-y", "400")
        # All colours that are seen are of the names.
        self._call("new-session", "-d", *size, f"env -u COLUMNS NO_COLOR=1 sh {folder}/run.sh")
        deadline = time.monotonic() + 120
        while "THE END" not in self._call("capture-pane", "-p"):
            assert time.monotonic() < deadline, self._call("capture-pane", "-p")
            time.sleep(0.1)
        self.text = self._call("capture-pane", "-p", "-e", "-S", "-").rstrip("\n")
        asked = "#{cursor_flag} #{cursor_y} #{alternate_on} #{pane_title}"
        self.cursor, self.row, self.alternate, self.title = self._call(
            "display-message", "-p", asked
        ).split()

    def _call(self, *arguments: str) -> str:
        done = subprocess.run(
            [*self._tmux, *arguments], capture_output=True, text=True, check=True, timeout=30
        )
        return done.stdout

    def close(self) -> None:
        self._call("kill-server")


@pytest.fixture
def run(tmp_path: Path) -> Iterator[list[Screen]]:
    if shutil.which("tmux") is None:
        pytest.skip("tmux is not installed: `make browser-deps`")
    opened: list[Screen] = []
    yield opened
    for screen in opened:
        screen.close()


def test_names_of_a_result_a_trace_and_an_error_do_nothing(
    tmp_path: Path, run: list[Screen]
) -> None:
    result, trace = tmp_path / "result.json", tmp_path / f"trace {NAME.replace('/', '')}"
    result.write_text(render(hostile(NAME)), encoding="utf-8")
    model = Calling(lambda self, x: self.get_submodule(NAME)(x), **{NAME: nn.Linear(2, 2)})
    record(trace, model, lambda: model(torch.ones(2, 2)).sum().backward())
    ttrace = f"PYTHONPATH={ROOT / 'src'} {sys.executable} -m ttrace"
    commands = [("report", result), ("show", trace), ("show", tmp_path / NAME.replace("/", ""))]
    lines = [f"{ttrace} {command} {shlex.quote(str(path))}" for command, path in commands]
    screen = Screen(tmp_path, "\n".join(lines))
    run.append(screen)
    assert (screen.title, screen.cursor, screen.alternate) == (plain_title(), "1", "0")
    looks = re.findall(r"\x1b(?:\[([0-9;]*)m)?", screen.text)
    assert {code for look in looks for code in look.split(";")} <= OWN
    for head in ("NOT EQUIVALENT: ", "could not be recorded: "):
        assert f"{head}{SHOWN}" in screen.text
    shown = [line for line in screen.text.split("\n") if line.startswith(f"step0/{SHOWN}")]
    assert len(shown) > 2
    assert re.search(r"^ttrace: .*\\x1b\]0;owned.* ", screen.text, re.MULTILINE)
    # One line a command and nothing overwritten: the text ends where the cursor is.
    assert int(screen.row) == screen.text.count("\n") + 1
    assert not re.search("^forged", screen.text, re.MULTILINE)


def test_the_companion_sees_what_a_terminal_obeys(tmp_path: Path, run: list[Screen]) -> None:
    screen = Screen(tmp_path, f"printf %s {shlex.quote(NAME)}")
    run.append(screen)
    assert (screen.title, screen.cursor) == ("owned", "0")
    assert re.search(r"\x1b\[(0;)?31m", screen.text)
    assert re.search("^.*forged", screen.text, re.MULTILINE)


def plain_title() -> str:
    return os.uname().nodename


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8"])
def test_a_terminal_that_lacks_characters_gets_their_numbers(encoding: str, tmp_path: Path) -> None:
    """Files go through a pipe as what they say they are, whatever the terminal takes."""
    result = tmp_path / "result.json"
    result.write_text(render(hostile("é日🙂")), encoding="utf-8")
    environment = os.environ | {"PYTHONIOENCODING": encoding, "PYTHONPATH": str(ROOT / "src")}

    def printed(*options: str) -> bytes:
        command = [sys.executable, "-m", "ttrace", "report", str(result), *options]
        done = subprocess.run(command, capture_output=True, env=environment, check=False)
        assert (done.returncode, done.stderr) == (1, b"")
        return done.stdout

    name = "é日🙂".encode(encoding, "backslashreplace").decode(encoding)
    assert f"NOT EQUIVALENT: {name}" in printed().decode(encoding)
    assert "é日🙂" in printed("--markdown", "-").decode("utf-8")
