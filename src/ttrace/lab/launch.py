"""Runs a user's command with tracing on, within a time limit, and keeps what it wrote."""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from ttrace.capture.attach import ENV_NOISE, ENV_OUT, ENV_PLANS, ENV_SPLIT, ENV_STEPS, ENV_TAPS
from ttrace.errors import CommandFailed, UsageError

_GRACE_SECONDS = 5.0  # chosen: time to write a traceback before the kill
_POLL_SECONDS = 0.05  # chosen: not noticed by a person
_SEARCHED_LINES = 2000  # a traceback of every rank of a node
_TORCHRUN_SUMMARY = "torch/distributed/elastic/multiprocessing/api.py"
_LAST_LINES = 20  # chosen: a Python traceback fits


@dataclass(frozen=True, slots=True, kw_only=True)
class TracedRun:
    """One command and where its trace goes; a string is run by the shell, a list as it is."""

    name: str
    command: str | Sequence[str]
    folder: Path
    steps: int = 1
    noise: int | None = None
    split: int = 1
    taps: bool = False
    plans: Path | None = None
    timeout_seconds: float = 1800.0

    @property
    def log(self) -> Path:
        return self.folder / "output.log"

    @property
    def variables(self) -> dict[str, str]:
        """How the run is told, in its environment, that and how it is traced."""
        values = {ENV_OUT: str(self.folder.resolve()), ENV_STEPS: str(self.steps)}
        if self.noise is not None:
            values[ENV_NOISE] = str(self.noise)
        if self.split > 1:
            values[ENV_SPLIT] = str(self.split)
        if self.taps:
            values[ENV_TAPS] = "1"
        if self.plans is not None:
            values[ENV_PLANS] = str(self.plans.resolve())
        return values


def prepare_folder(folder: Path) -> Path:
    """An empty folder to write into; data that is there already is never touched."""
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise UsageError(
            f"{folder} exists and is not an empty folder: traces are never overwritten; "
            "choose another with --out or remove it"
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        probe = folder / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}; choose another folder with --out"
        ) from error
    return folder


def run_traced(run: TracedRun) -> None:
    """Run to the end or to the time limit; anything but a recorded success raises CommandFailed."""
    inherited = (ENV_NOISE, ENV_SPLIT, ENV_TAPS, ENV_PLANS)
    environment = {k: v for k, v in os.environ.items() if k not in inherited} | run.variables
    run.folder.mkdir(parents=True, exist_ok=True)
    with run.log.open("xb") as log:
        try:
            process = subprocess.Popen(
                run.command,
                shell=isinstance(run.command, str),
                env=environment,
                stdout=log,
                stderr=subprocess.STDOUT,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError as error:
            run.log.unlink()  # nothing ran: the folder stays empty for the next try
            words = [run.command] if isinstance(run.command, str) else run.command
            raise CommandFailed(
                f"the {run.name} command could not be started: {error.strerror}: "
                f"{shlex.join(words)}; expected a program and its arguments"
            ) from error
        try:
            code = process.wait(timeout=run.timeout_seconds)
        except subprocess.TimeoutExpired:
            raise CommandFailed(
                f"the {run.name} command did not end within {run.timeout_seconds:g} s and was "
                f"stopped; a collective that one rank never entered hangs like this. Raise "
                f"--timeout if it is merely slow. {_tail(run)}"
            ) from None
        finally:
            _stop(process, environment[ENV_OUT])
    if code != 0:
        raise CommandFailed(f"the {run.name} command {_how(code)}. {_tail(run)}")
    if not any(run.folder.glob("rank-*")):
        raise CommandFailed(
            f"the {run.name} command ended well but recorded nothing: its script must call "
            f"`tracer = ttrace.attach(model, optimizer)` and run its step inside `with "
            f"tracer.step():`. {_tail(run)}"
        )


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
    mark = f"{ENV_OUT}={folder}".encode()
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
