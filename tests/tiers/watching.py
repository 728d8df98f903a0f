"""What a test costs, with all of its processes, and whether it starts any.

CPU time, not time by the clock: the machine may do other things beside the tests.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

_TICKS = os.sysconf("SC_CLK_TCK")
_STARTS = {"subprocess.Popen", "os.fork", "os.forkpty", "os.posix_spawn", "os.system"}

# Who is told of a process that starts; audit hooks cannot be taken away again, so there is one.
_told: list[list[str]] = []


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if event in _STARTS and _told:
        _told[-1].append(f"{event}: {arguments[0] if arguments else ''}")


@contextmanager
def starts() -> Iterator[list[str]]:
    """The processes that are started while it is open, as they are called by Python."""
    if not hasattr(sys, "_ttrace_tests_listen"):
        sys.addaudithook(_audit)
        sys._ttrace_tests_listen = True  # type: ignore[attr-defined]
    _told.append([])
    try:
        yield _told[-1]
    finally:
        _told.pop()


def cpu_seconds() -> float:
    """CPU time of this process, of all below it, and of those that they have waited for."""
    numbers = {pid: fields for pid in _pids() if (fields := _fields(pid)) is not None}
    below = {os.getpid()}
    grown = True
    while grown:
        more = {pid for pid, fields in numbers.items() if int(fields[1]) in below} - below
        below |= more
        grown = bool(more)
    ticks = sum(sum(map(int, numbers[pid][11:15])) for pid in below if pid in numbers)
    return ticks / _TICKS


def _pids() -> Iterator[int]:
    yield from (int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit())


def _fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat from the state on: its parent is 1, its times are 11 to 14."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
