"""Traced runs of shell commands, and what is said of those that fail."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from ttrace.capture.settings import Settings
from ttrace.errors import CommandFailed
from ttrace.lab.launch import run_command
from ttrace.lab.run import TracedRun


def run(command: str, folder: Path, *, timeout_seconds: float = 60.0, **how: Any) -> TracedRun:
    settings = Settings(folder=folder, **how)
    made = TracedRun(
        name="candidate", work=command, settings=settings, timeout_seconds=timeout_seconds
    )
    run_command(made, command)
    return made


def failure(command: str, folder: Path, timeout_seconds: float = 60.0) -> str:
    with pytest.raises(CommandFailed) as raised:
        run(command, folder, timeout_seconds=timeout_seconds)
    return str(raised.value)
