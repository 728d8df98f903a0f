"""A command under its supervisor, as the process sees it that asked for the run.

Enters: a command, its environment and the file for its output. Leaves: its exit code, and nothing
that it started, also when this process dies (ttrace/lab/supervisor.py). What this process has
besides, children, signal handlers, settings, is left alone: it may be anybody's.
"""

from __future__ import annotations

import os
import select
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import IO

from ttrace.errors import CommandFailed
from ttrace.lab import supervisor

# Chosen: a script that ends with its last recorded step ends by itself, and may save its model.
PATIENCE_SECONDS = 3.0
GRACE_SECONDS = 5.0  # chosen: time to write a traceback before the kill

_MARGIN_SECONDS = 5.0  # chosen: beyond both graces, for a machine that is busy
_LONGEST_WAIT_SECONDS = 3600.0  # what poll takes at a time, with room


class NotStarted(OSError):
    """There is no such program, or the system refused to run it."""


class Supervised:
    """A command that runs. One that cannot be started raises NotStarted, at the first `wait`.

    Where it `stays`, what it leaves running when it ends is not ended before `stop`.
    """

    def __init__(
        self,
        command: Sequence[str],
        environment: dict[str, str],
        log: IO[bytes],
        *,
        grace_seconds: float,
        stays: bool = False,
    ) -> None:
        self._command = command
        self._patience_seconds = 2 * grace_seconds + _MARGIN_SECONDS
        program = [sys.executable, "-I", "-S", str(Path(supervisor.__file__))]
        try:
            self._process = subprocess.Popen(
                [*program, str(os.getpid()), str(grace_seconds), str(int(stays)), *command],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                bufsize=0,
                start_new_session=True,  # what a terminal sends is for this process to pass on
            )
        except OSError as error:
            raise NotStarted(error.errno, error.strerror) from error

    def wait(self, timeout_seconds: float) -> int:
        """The exit code; subprocess.TimeoutExpired while the command runs."""
        word, _, number = self._news(timeout_seconds).partition(b"\n")[0].partition(b" ")
        if word == b"failed":
            raise NotStarted(int(number), os.strerror(int(number)))
        if word != b"ended":
            raise CommandFailed(
                "the supervisor of the command ended before the command did, with exit code "
                f"{self._process.wait()}; expected nobody to end it: run the command again"
            )
        return int(number)

    def stop(self) -> None:
        """End whatever of the command is left; all of it is gone afterwards."""
        self._process.terminate()
        deadline = time.monotonic() + self._patience_seconds
        try:
            while self._news(deadline - time.monotonic()):
                pass
        except subprocess.TimeoutExpired:
            self._process.kill()
        self._process.wait()
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _news(self, timeout_seconds: float) -> bytes:
        """What the supervisor says next; nothing when it has ended."""
        assert self._process.stdout is not None
        news = self._process.stdout.fileno()
        poll = select.poll()
        poll.register(news, select.POLLIN)
        deadline = time.monotonic() + timeout_seconds
        left = timeout_seconds
        while not poll.poll(1000 * max(0.0, min(left, _LONGEST_WAIT_SECONDS))):
            left = deadline - time.monotonic()
            if left <= 0:
                raise subprocess.TimeoutExpired(self._command, timeout_seconds)
        return os.read(news, 1 << 10)
