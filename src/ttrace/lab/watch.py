"""Runs a user's command while its replicas are watched, to its end, and reads what was found."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ttrace.capture.settings import WatchSettings, without_settings
from ttrace.core.drift import Drift, WatchedRun
from ttrace.errors import CommandFailed, TraceError
from ttrace.lab.launch import could_not_start, how_it_ended, last_lines
from ttrace.lab.run import HOW_TO_ATTACH, Command
from ttrace.lab.supervised import GRACE_SECONDS, NotStarted, Supervised
from ttrace.trace.progress import read_refusals
from ttrace.trace.watch_file import read_watched

_LOOK_SECONDS = 1.0  # chosen: between two looks for a drift, on a slow file system too
TellDrift = Callable[[Drift], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class WatchEnd:
    """What a watched command left, and how it ended; `failure` is None where it ended well."""

    found: WatchedRun | None
    failure: str | None
    refusals: tuple[str, ...]  # of processes that could not be watched
    log: Path

    @property
    def exit_code(self) -> int:
        """1: replicas differ. 2: nothing was compared, or not to the end, or the command failed."""
        if self.found is not None and self.found.drifts:
            return 1
        is_sound = self.failure is None and not self.refusals
        is_whole = self.found is not None and self.found.is_compared and self.found.ended
        return 0 if is_sound and is_whole and self.found and not self.found.broke_off else 2


def watch_command(
    settings: WatchSettings, command: Command, told: TellDrift, timeout_seconds: float | None
) -> WatchEnd:
    """Run to the end; `told` gets the first drift as soon as the run has found it."""
    settings.folder.mkdir(parents=True, exist_ok=True)
    environment = without_settings(os.environ) | settings.to_environment()
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    output = settings.folder / "output.log"
    with output.open("x+b", buffering=0) as log:
        try:
            process = Supervised(words, environment, log, grace_seconds=GRACE_SECONDS)
            try:
                failure = _wait(process, settings.folder, told, timeout_seconds)
            finally:
                process.stop()
        except NotStarted as error:
            output.unlink()
            raise could_not_start("watched", command, error) from error
    found = read_watched(settings.folder)
    refusals = read_refusals(settings.folder)
    if found is None and failure is None:
        why = f"could not be watched: {'; '.join(refusals)}" if refusals else HOW_TO_ATTACH
        raise CommandFailed(f"the watched run ended well but {why} {last_lines(output)}")
    if failure is not None:
        failure = f"{failure}. {last_lines(output)}"
    return WatchEnd(found=found, failure=failure, refusals=refusals, log=output)


def _wait(
    process: Supervised, folder: Path, told: TellDrift, timeout_seconds: float | None
) -> str | None:
    """How the command failed, if it did."""
    began, is_told = time.monotonic(), False
    while True:
        with suppress(subprocess.TimeoutExpired):
            code = process.wait(_LOOK_SECONDS)
            return None if code == 0 else f"the watched command {how_it_ended(code)}"
        found = None
        with suppress(TraceError, OSError):
            found = read_watched(folder)
        if found is not None and found.drifts and not is_told:
            is_told = True
            told(found.drifts[0])
        if timeout_seconds is not None and time.monotonic() - began > timeout_seconds:
            return f"the watched command did not end within {timeout_seconds:g} s and was stopped"
