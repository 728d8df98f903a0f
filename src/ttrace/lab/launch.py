"""Runs a user's command with tracing on, within a time limit, and keeps what it wrote.

`LocalExecutor` runs all that an experiment asks for on this machine, functions as well.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from ttrace.capture import settings
from ttrace.capture.settings import pack
from ttrace.errors import CommandFailed, TraceError, UsageError
from ttrace.lab.elsewhere import RanksMissing, require_handed_on, starts_elsewhere, wait_for_ranks
from ttrace.lab.functions import WorkerPool, run_function, shared_pool
from ttrace.lab.run import Command, Function, TracedRun, require_recorded
from ttrace.lab.supervised import GRACE_SECONDS, PATIENCE_SECONDS, NotStarted, Supervised
from ttrace.trace.journal import MANIFEST, RANK
from ttrace.trace.progress import REFUSED, is_recorded, keep_common_steps, write_death
from ttrace.trace.store import PathOrUrl, Url, local_path, place_of

_LOOK_SECONDS = 0.5  # chosen: between two looks at what is recorded, on a slow file system too
_LOOK_FAR_SECONDS = 5.0  # chosen: behind a URL, where each lists all files
_SEARCHED_BYTES = 1 << 20  # chosen: a traceback of every rank of a node
_TORCHRUN_SUMMARY = "torch/distributed/elastic/multiprocessing/api.py"
_LAST_LINES = 20  # chosen: a Python traceback fits
_LINE_CHARS = 2000  # chosen: 25 lines of a terminal
_PROBE = ".writable-"
_OF_OTHERS = ("rank-", "output-", REFUSED, _PROBE)
_STOPPED = (
    "\nttrace: all {steps} steps are recorded, so the command was stopped here; --run-to-end lets "
    "it go on\n"
)
_IF_ELSEWHERE = " If it only starts a job that runs elsewhere, say --elsewhere."


def prepare_folder(folder: Path, *, shared: bool = False, resumed: bool = False) -> Path:
    """A folder to write into; data that is there already is never touched.

    It must be empty, or `shared` with other launchers of the same run: then ranks and logs of those
    may be there. A rank that finds its own folder taken ends its run by itself. A run that is
    `resumed` takes its own, and of what it had recorded the steps that all ranks had ended.
    """
    known = [*_OF_OTHERS] if shared or resumed else []
    known += ["output.log"] if resumed else []
    if folder.exists() and (not folder.is_dir() or any(_in_the_way(folder, known))):
        raise UsageError(
            f"{folder} exists and is not an empty folder: traces are never overwritten; "
            "choose another with --out or remove it"
            + ("" if known else " (several launchers of one run: --shared)")
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=folder, prefix=_PROBE):
            pass
    except OSError as error:
        raise UsageError(
            f"cannot write to {folder}: {error.strerror}; choose another folder with --out"
        ) from error
    if resumed:
        keep_common_steps(folder)
    return folder


def prepare_place(text: str, *, shared: bool = False, resumed: bool = False) -> PathOrUrl:
    """The same of a folder that may be behind a URL; there a run cannot be resumed."""
    place = place_of(text)
    if isinstance(place, Path):
        return prepare_folder(place, shared=shared, resumed=resumed)
    if resumed:
        raise UsageError(f"--resume goes on with a trace on a disk, and {place} is a URL")
    known = _OF_OTHERS if shared else ()
    if any(not name.startswith(known) for name in place.listing()):
        raise UsageError(
            f"{place} is not empty: traces are never overwritten; choose another with --out"
            + ("" if known else " (several launchers of one run: --shared)")
        )
    try:
        probe = place / f"{_PROBE}{os.getpid()}"
        probe.write_bytes(b"")
        probe.unlink()
    except TraceError as error:
        raise UsageError(str(error)) from error
    return place


def _in_the_way(folder: Path, known: Sequence[str]) -> Iterator[Path]:
    return (path for path in folder.iterdir() if not path.name.startswith(tuple(known)))


def run_command(run: TracedRun, command: Command) -> None:
    """Run until all steps are recorded or to the time limit; else CommandFailed.

    A command that goes on after its last recorded step is stopped, unless it is to run to its end.
    One that dies after that step has left all that was asked for. Nothing that it started is left
    when this returns or raises, nor when this process dies. A command that is detached from its
    ranks, which run elsewhere, has run when all of them have ended.
    """
    with _uploaded(run):
        _run(run, command)


def _run(run: TracedRun, command: Command) -> None:
    is_detached = run.elsewhere.asked
    if is_detached is None:
        is_detached = starts_elsewhere(command)
    if is_detached:
        require_handed_on(run.name, command)
        local_path(run.folder)  # where ranks are waited for
    run.log.parent.mkdir(parents=True, exist_ok=True)
    told = run.settings.to_environment()
    environment = settings.without_settings(os.environ) | told | {settings.PACKED: pack(told)}
    if run.spool is not None:
        environment[settings.SPOOL] = str(run.spool)
    # Without a buffer: the supervisor moves the end of the file, where the next line goes.
    with run.log.open("x+b", buffering=0) as log:
        code = _exit_code(run, command, environment, log, is_detached=is_detached)
        if code is None:
            log.write(_STOPPED.format(steps=run.settings.steps).encode())
            return
    if code != 0:
        if not is_recorded(run.folder, run.settings.steps):
            raise CommandFailed(
                f"the {run.name} command {how_it_ended(code)}. {last_lines(run.log)}"
            )
        write_death(run.folder, how_it_ended(code))
    _require_copied(run)
    require_recorded(run, f"{'' if is_detached else _IF_ELSEWHERE} {last_lines(run.log)}")


@contextmanager
def _uploaded(run: TracedRun) -> Iterator[None]:
    """The log of a run whose trace is behind a URL goes there, too; it stays here if it cannot."""
    try:
        yield
    except BaseException:
        with suppress(OSError, TraceError):  # the error says where it is here
            _send_log(run)
        raise
    with suppress(OSError, TraceError):
        _send_log(run)
        if run.spool is not None:
            run.log.unlink()
            spool = run.spool
            spool.rmdir()
            spool.parent.rmdir()


def _copy_left(run: TracedRun, log: IO[bytes]) -> None:
    """Copy what ranks did not: they were killed, or the store did not answer them."""
    try:
        for folder in _ranks_left(run):
            assert isinstance(run.folder, Url)
            (run.folder / folder.name).take_rank(folder)
    except (OSError, TraceError) as error:
        log.write(f"\nttrace: {error}\n".encode())


def _ranks_left(run: TracedRun) -> list[Path]:
    """The folders of ranks that are in the spool of the run."""
    if run.spool is None:
        return []
    return sorted(path.parent for path in run.spool.glob(f"*/{RANK}*/{MANIFEST}"))


def _require_copied(run: TracedRun) -> None:
    left = _ranks_left(run)
    if left:
        raise CommandFailed(
            f"the {run.name} run ended well, but {len(left)} of its ranks could not be copied to "
            f"{run.folder}: they are kept in {left[0].parent}, copy them there. "
            f"{last_lines(run.log)}"
        )


def _send_log(run: TracedRun) -> None:
    if isinstance(run.folder, Url):
        run.kept_log.write_bytes(run.log.read_bytes())


def _exit_code(
    run: TracedRun,
    command: Command,
    environment: dict[str, str],
    log: IO[bytes],
    *,
    is_detached: bool,
) -> int | None:
    """The exit code; None when the command went on though all steps are recorded."""
    words = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    try:
        process = Supervised(
            words, environment, log, grace_seconds=GRACE_SECONDS, stays=is_detached
        )
        try:
            if is_detached or run.elsewhere.stop is not None:
                return wait_for_ranks(process, run, is_detached=is_detached)
            return _wait(process, run)
        finally:
            process.stop()
            _copy_left(run, log)
    except RanksMissing as error:
        raise CommandFailed(f"{error} {last_lines(run.log)}") from None
    except subprocess.TimeoutExpired:
        raise CommandFailed(
            f"the {run.name} command did not end within {run.timeout_seconds:g} s and was "
            f"stopped; a collective that one rank never entered hangs like this. Raise "
            f"--timeout if it is merely slow. {last_lines(run.log)}"
        ) from None
    except NotStarted as error:
        run.log.unlink()  # nothing ran: the folder stays empty for the next try
        raise could_not_start(run.name, command, error) from error


def _wait(process: Supervised, run: TracedRun) -> int | None:
    if run.to_end:
        return process.wait(run.timeout_seconds)
    deadline = time.monotonic() + run.timeout_seconds
    look_seconds = _LOOK_FAR_SECONDS if isinstance(run.folder, Url) else _LOOK_SECONDS
    while not is_recorded(run.folder, run.settings.steps):
        left = deadline - time.monotonic()
        with suppress(subprocess.TimeoutExpired):
            return process.wait(max(0.0, min(look_seconds, left)))
        if left <= 0:
            raise subprocess.TimeoutExpired(run.name, run.timeout_seconds)
    with suppress(subprocess.TimeoutExpired):
        return process.wait(PATIENCE_SECONDS)
    return None


def could_not_start(name: str, command: Command, error: NotStarted) -> CommandFailed:
    return CommandFailed(
        f"the {name} command could not be started: {error.strerror}: "
        f"{command if isinstance(command, str) else shlex.join(command)}; expected a program "
        "and its arguments"
    )


def how_it_ended(code: int) -> str:
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


def last_lines(log: Path) -> str:
    """The last lines of the log, of which no more is read than could be shown."""
    try:
        with log.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - _SEARCHED_BYTES))
            read = file.read(_SEARCHED_BYTES).decode(errors="replace")
    except OSError as error:
        return f"Its output in {log} is gone ({error.strerror}): something removed it"
    lines = read.replace("\r\n", "\n").replace("\r", "\n").split("\n")
    # What torchrun adds when a rank fails is longer than what the rank had to say.
    summary = next((i for i, line in enumerate(lines) if _TORCHRUN_SUMMARY in line), None)
    shown = "\n".join(lines[:summary] or lines).rstrip().split("\n")[-_LAST_LINES:]
    text = "\n".join(map(_cut, shown)).rstrip()
    return f"Its output is in {log}" + (f"; the last lines:\n{text}" if text else " (empty)")


def _cut(line: str) -> str:
    left_out = len(line) - _LINE_CHARS
    return line if left_out <= 0 else f"{line[:_LINE_CHARS]}... ({left_out:,} characters more)"


@dataclass(frozen=True, slots=True)
class LocalExecutor:
    """Runs both kinds of work; functions in the given pool, or in one that the process shares."""

    pool: WorkerPool | None = None

    def __call__(self, run: TracedRun) -> None:
        if isinstance(run.work, Function):
            run_function(run, run.work, self.pool or shared_pool())
        else:
            run_command(run, run.work)
