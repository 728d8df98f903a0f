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
from ttrace.trace.progress import REFUSED, is_recorded, write_death

# Chosen: a script that ends with its last recorded step ends by itself, and may save its model.
_PATIENCE_SECONDS = 3.0
_GRACE_SECONDS = 5.0  # chosen: time to write a traceback before the kill
_POLL_SECONDS = 0.05  # chosen: not noticed by a person
_LOOK_SECONDS = 0.5  # chosen: between two looks at what is recorded, on a slow file system too
_SEARCHED_LINES = 2000  # a traceback of every rank of a node
_TORCHRUN_SUMMARY = "torch/distributed/elastic/multiprocessing/api.py"
_LAST_LINES = 20  # chosen: a Python traceback fits
_PROBE = ".writable-"
_STOPPED = (
    "\nttrace: all {steps} steps are recorded, so the command was stopped here; --run-to-end lets "
    "it go on\n"
)


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
        if not (shared and path.name.startswith(("rank-", "output-", REFUSED, _PROBE))):
            yield path


def run_command(run: TracedRun, command: Command) -> None:
    """Run until all steps are recorded or to the time limit; else CommandFailed.

    A command that goes on after its last recorded step is stopped, unless it is to run to its end.
    One that dies after that step has left all that was asked for.
    """
    run.folder.mkdir(parents=True, exist_ok=True)
    environment = settings.without_settings(os.environ) | run.settings.to_environment()
    with run.log.open("xb") as log:
        process = _start(run, command, environment, log)
        try:
            code = _wait(process, run)
        except subprocess.TimeoutExpired:
            raise CommandFailed(
                f"the {run.name} command did not end within {run.timeout_seconds:g} s and was "
                f"stopped; a collective that one rank never entered hangs like this. Raise "
                f"--timeout if it is merely slow. {_tail(run)}"
            ) from None
        finally:
            _stop(process, environment[settings.OUT])
        if code is None:
            log.write(_STOPPED.format(steps=run.settings.steps).encode())
            return
    if code != 0:
        if not is_recorded(run.folder, run.settings.steps):
            raise CommandFailed(f"the {run.name} command {_how(code)}. {_tail(run)}")
        write_death(run.folder, _how(code))
    require_recorded(run, f" {_tail(run)}")


def _wait(process: subprocess.Popen[bytes], run: TracedRun) -> int | None:
    """The exit code; None when the command goes on though all steps are recorded."""
    if run.to_end:
        return process.wait(timeout=run.timeout_seconds)
    deadline = time.monotonic() + run.timeout_seconds
    while not is_recorded(run.folder, run.settings.steps):
        left = deadline - time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(timeout=max(0.0, min(_LOOK_SECONDS, left)))
        if left <= 0:
            raise subprocess.TimeoutExpired(process.args, run.timeout_seconds)
    with suppress(subprocess.TimeoutExpired):
        return process.wait(timeout=_PATIENCE_SECONDS)
    return None


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
