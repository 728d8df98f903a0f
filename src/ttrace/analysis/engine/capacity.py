"""How many workers this machine has room for, and whether a check is worth them.

Workers cost about as much as they save where little is to be measured, so for a check that nobody
asked an engine for, what traces have on disk decides, before they are opened.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from ttrace.analysis.engine.base import Engine, Serial
from ttrace.analysis.engine.processes import Processes
from ttrace.errors import TTraceError
from ttrace.trace import journal
from ttrace.trace.files import files_of, rank_names
from ttrace.trace.store import PathOrUrl

# Measured: to start, a worker takes 2 s, in which one process reads 8 to 12 GB of files that are in
# memory. Two workers can be ahead from twice that on; chosen: somewhat more.
_ENOUGH_BYTES = 32 << 30
_LINE_BYTES = 300  # measured: of a record, in a journal
_RECORD_BYTES = 100_000  # measured: that are read while one fingerprint is


def suitable_engine(reference: PathOrUrl | str, others: Sequence[PathOrUrl | str]) -> Engine:
    """For a comparison of each of the others with the reference."""
    cost = sum(map(_cost, others)) + len(others) * _cost(reference)
    workers = room_for_workers() if cost >= _ENOUGH_BYTES else 1
    return Serial() if workers == 1 else Processes(workers)


def _cost(trace: PathOrUrl | str) -> int:
    """What there is to read, as bytes; of a trace that cannot be listed, none."""
    try:
        files = files_of(trace)
        names = [f"{rank}/{journal.JOURNAL}" for rank in rank_names(files)]
        lines = sum(files.size(name, holds="records") for name in filter(files.has, names))
        return files.segments_bytes() + _RECORD_BYTES * (lines // _LINE_BYTES)
    except (TTraceError, OSError):  # it is said when the trace is opened
        return 0


# Chosen: twice what was measured, 240 MB resident, of which 80 MB are code that all share.
_WORKER_BYTES = 512 << 20
_CGROUP = Path("/sys/fs/cgroup")
_MEMINFO = Path("/proc/meminfo")


def room_for_workers() -> int:
    """As many as there are cores; fewer where memory is short, and one at least."""
    free = free_bytes()
    fit = cores() if free is None else free // _WORKER_BYTES
    return max(1, min(cores(), fit))


def cores() -> int:
    """Those that the scheduler gives to this process, and its control group pays for."""
    has_affinity = hasattr(os, "sched_getaffinity")
    found = len(os.sched_getaffinity(0)) if has_affinity else os.cpu_count() or 1
    quota = _quota()
    return found if quota is None else max(1, min(found, round(quota)))


def _quota() -> float | None:
    """CPU seconds a second, where they are limited: of control groups of version 2, then of 1."""
    with suppress(OSError, ValueError, ZeroDivisionError):
        used, period = (_CGROUP / "cpu.max").read_text().split()
        return int(used) / int(period)
    with suppress(OSError, ValueError, ZeroDivisionError):
        used, period = (
            (_CGROUP / "cpu" / f"cpu.cfs_{name}_us").read_text() for name in ("quota", "period")
        )
        return int(used) / int(period) if int(used) > 0 else None
    return None


def free_bytes() -> int | None:
    """Memory that is left to this process; None where nothing says it."""
    found = [_available(), *map(_left, (("memory.max", "memory.current"), _OLDER))]
    known = [size for size in found if size is not None]
    return min(known) if known else None


_OLDER = ("memory/memory.limit_in_bytes", "memory/memory.usage_in_bytes")


def _available() -> int | None:
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMINFO.read_text().splitlines()
        line = next(line for line in lines if line.startswith("MemAvailable:"))
        return int(line.split()[1]) * 1024
    return None


def _left(files: tuple[str, str]) -> int | None:
    with suppress(OSError, ValueError):  # "max" is no limit
        most, used = (int((_CGROUP / name).read_text()) for name in files)
        return max(0, most - used)
    return None
