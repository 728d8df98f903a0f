"""Traced runs of shell commands, and what is said of those that fail."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ttrace.capture.settings import Settings
from ttrace.errors import CommandFailed
from ttrace.lab import elsewhere, launch, supervised
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


class Clock:
    """A stand-in for `time` whose seconds pass when something has happened, not by themselves.

    A command that is to be stopped by a time limit must have begun, however busy the machine is.
    Each look at the clock after that finds that `step` more seconds have passed.
    """

    def __init__(self, happened: Callable[[], bool], step: float) -> None:
        self._happened, self._step, self._passed = happened, step, 0.0

    def monotonic(self) -> float:
        if self._happened():
            self._passed = max(self._passed + self._step, _LONG)
        return self._passed

    def sleep(self, seconds: float) -> None:
        time.sleep(seconds)


_LONG = 1e6  # seconds, longer than any limit


def all_time_is_over_when(happened: Callable[[], bool], monkeypatch: pytest.MonkeyPatch) -> None:
    """Let every time limit be over as soon as something has happened, and none before."""
    for module in (launch, supervised):
        monkeypatch.setattr(module, "time", Clock(happened, 0.0))
    # It counts anew from the first sign of a rank, which may come later than what has happened.
    monkeypatch.setattr(elsewhere, "time", Clock(happened, _LONG))
    monkeypatch.setattr(supervised, "_LONGEST_WAIT_SECONDS", 0.05)


def says(folder: Path, text: str = "\n") -> Callable[[], bool]:
    """Whether the command of a run has written this."""
    log = folder / "output.log"
    return lambda: log.exists() and text in log.read_text()
