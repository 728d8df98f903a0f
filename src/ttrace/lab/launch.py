"""Runs a user's command with tracing on, within a time limit, and keeps what it wrote."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import IO

from ttrace.capture import settings
from ttrace.errors import CommandFailed, UsageError
from ttrace.lab.run import Command, TracedRun, require_recorded

_GRACE_SECONDS = 5.0  # chosen: time to write a traceback before the kill
_POLL_SECONDS = 0.05  # chosen: not noticed by a person
_SEARCHED_LINES = 2000  # a traceback of every rank of a node
_TORCHRUN_SUMMARY = "torch/distributed/elastic/multiprocessing/api.py"
_LAST_LINES = 20  # chosen: a Python traceback fits
_PROBE = ".writable-"


def prepare_folder(folder: Path, *, shared: bool = False) -> Path:
    """A folder to write into; data that is there already is never touched.

    It must be empty, or `shared` with other launchers of the same run: then ranks and logs of those
    may be there. A rank that finds its own folder taken ends its run by itself.
    """
    if folder.exists() and (not folder.is_dir() or any(_in_the_way(folder, shared=shared))):
        raise UsageError(
            f"{folder} exists and is not an empty folder: traces are never overwritten; "
            "choose another with --out or remove it"
            + ("" if shared else " (several launchers of one run: --shared)")
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=_PROBE):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}; choose another folder with --out"
        ) from error
    return folder


def _in_the_way(folder: Path, *, shared: bool) -> Iterator[Path]:
    for path in folder.iterdir():
        if not (shared and path.name.startswith(("rank-", "output-", _PROBE))):
            yield path


def run_command(run: TracedRun, command: Command) -> None:
    """Run to the end or to the time limit; anything but a recorded success raises CommandFailed."""
    run.folder.mkdir(parents=True, exist_ok=True)
    environment = settings.without_settings(os.environ) | run.settings.to_environment()
    with run.log.open("xb") as log:
        process = _start(run, command, environment, log)
        try:
            code = process.wait(timeout=run.timeout_seconds)
        except subprocess.TimeoutExpired:
            raise CommandFailed(
                f"the {run.name} command did not end within {run.timeout_seconds:g} s and was "
                f"stopped; a collective that one rank never entered hangs like this. Raise "
                f"--timeout if it is merely slow. {_tail(run)}"
            ) from None
        finally:
            _stop(process, environment[settings.OUT])
    if code != 0:
        raise CommandFailed(f"the {run.name} command {_how(code)}. {_tail(run)}")
    require_recorded(run, f" {_tail(run)}")


def _start(
    run: TracedRun, command: Command, environment: dict[str, str], log: IO[bytes]
) -> subprocess.Popen[bytes]:
    try:
        return subprocess.Popen(
            command,
            shell=isinstance(command, str),
            env=environment,
            stdout=log,
            stderr=subprocess.STDOUT,
            stdin=subprocess.DEVNULL,
            start_new_session=True,
        )
    except OSError as error:
        run.log.unlink()  # nothing ran: the folder stays empty for the next try
        words = [command] if isinstance(command, str) else command
        raise CommandFailed(
            f"the {run.name} command could not be started: {error.strerror}: "
            f"{shlex.join(words)}; expected a program and its arguments"
        ) from error


def _stop(process: subprocess.Popen[bytes], folder: str) -> None:
    """End the command's process group; when it did not end by itself, all that it started."""
    overdue = process.poll() is None
    for sign in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, sign)
        for pid in _heirs(folder) if overdue else ():
            with suppress(ProcessLookupError):
                os.kill(pid, sign)
        deadline = time.monotonic() + _GRACE_SECONDS
        while overdue and time.monotonic() < deadline:
            if process.poll() is not None and not _heirs(folder):
                break
            time.sleep(_POLL_SECONDS)


def _heirs(folder: str) -> list[int]:
    """Processes that inherited this run's environment: torchrun's ranks leave its group."""
    mark = f"{settings.OUT}={folder}".encode()
    heirs = []
    for path in Path("/proc").glob("[0-9]*/environ"):  # on Linux; elsewhere there are none
        with suppress(OSError):
            if mark in path.read_bytes().split(b"\0"):
                heirs.append(int(path.parent.name))
    return [pid for pid in heirs if pid != os.getpid()]


def _how(code: int) -> str:
    """How a command ended; a shell adds 128 to the signal that killed what it ran."""
    if code < 0:
        return f"was killed by {_name(-code)}"
    signalled = f" ({_name(code - 128)} in a shell)" if 128 < code < 128 + 64 else ""
    return f"ended with exit code {code}{signalled}"


def _name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _tail(run: TracedRun) -> str:
    with run.log.open(errors="replace") as log:
        lines = list(deque(log, maxlen=_SEARCHED_LINES))
    # What torchrun adds when a rank fails is longer than what the rank had to say.
    summary = next((i for i, line in enumerate(lines) if _TORCHRUN_SUMMARY in line), None)
    text = "".join((lines[:summary] or lines)[-_LAST_LINES:]).rstrip()
    return f"Its output is in {run.log}" + (f"; the last lines:\n{text}" if text else " (empty)")
