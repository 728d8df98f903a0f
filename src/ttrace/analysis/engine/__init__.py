"""Engines: who does the work of a check, in this process, in many, or on a cluster.

    serial          one job after the other, in this process
    processes       on all cores of this machine; what large checks get by themselves
    ray             on a cluster of Ray: `ray:ADDRESS`, or the one of RAY_ADDRESS

Further engines come by the entry point group `ttrace.engines`: the name of an engine and a callable
without arguments that makes it. base.py says what an engine is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from importlib.metadata import entry_points

from ttrace.analysis.engine.base import Engine, Job, Serial, Workplace, one_thread, run_alone
from ttrace.analysis.engine.capacity import room_for_workers
from ttrace.analysis.engine.processes import Processes
from ttrace.errors import UsageError

__all__ = [
    "Engine",
    "Job",
    "Processes",
    "Serial",
    "Workplace",
    "find_engine",
    "one_thread",
    "run_alone",
]
ENGINES = "ttrace.engines"
_Make = Callable[[int | None, str], Engine]  # of how many workers, and of where they are


def find_engine(name: str | None = None, workers: int | None = None) -> Engine | None:
    """The engine of this name; without one, as many processes as there are workers.

    None where nothing is said: a check then chooses by what it has to read.
    """
    if name is None:
        return None if workers is None else _processes(workers, "")
    called, _, where = name.partition(":")
    if called in _OWN:
        return _OWN[called](workers, where)
    found = {point.name: point for point in entry_points(group=ENGINES)}
    if called not in found:
        known = ", ".join(sorted({*_OWN, *found}))
        raise UsageError(
            f"no engine is called {called!r}; there are {known}, and others come by entry points "
            f"of {ENGINES}"
        )
    if workers is not None or where:
        raise UsageError(f"the engine {called} takes neither --workers nor an address: found both")
    engine: Engine = found[called].load()()
    return engine


def _serial(workers: int | None, where: str) -> Engine:
    if workers not in (None, 1) or where:
        raise UsageError(
            f"the engine serial is one process, found {workers or where}; expected "
            "`--engine processes`, or nothing"
        )
    return Serial()


def _processes(workers: int | None, where: str) -> Engine:
    if where:
        raise UsageError(
            f"processes are on this machine, found the address {where!r}: say how many with "
            "--workers, or use `--engine ray:ADDRESS`"
        )
    count = room_for_workers() if workers is None else workers
    return Serial() if count == 1 else Processes(count)


def _ray(workers: int | None, where: str) -> Engine:
    from ttrace.analysis.engine.on_ray import OnRay

    return OnRay(workers, where)


_OWN: Mapping[str, _Make] = {"processes": _processes, "ray": _ray, "serial": _serial}
