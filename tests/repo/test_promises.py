"""The table of promises names tests and commands that are there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "explanation" / "reliability.md").read_text()
ROWS = [line.split("|") for line in PAGE.splitlines() if line.startswith("| ")]


def test_every_promise_is_held_by_something_that_is_there() -> None:
    targets = (ROOT / "Makefile").read_text()
    held = [row[2] for row in ROWS if row[2].strip() != "held by"]
    assert len(held) > 20
    for cell in held:
        files = re.findall(r"tests/[\w/]+\.py", cell)
        commands = re.findall(r"`make (\w+)`", cell)
        assert files or commands, cell
        assert [file for file in files if not (ROOT / file).is_file()] == []
        assert [name for name in commands if f"\n{name}:" not in targets] == []
