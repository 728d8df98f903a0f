"""How many workers this machine has room for: cores and memory that this process may use."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

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
