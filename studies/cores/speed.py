"""How much faster a check gets from process to process, on one machine of many cores.

By the API, so that nothing has to be installed beside what records. Processes are started before
the clock is: how long that takes has a column of its own, since it is the same for a check of any
size. CPU time says why a row is not as fast as its processes are many: where it grows, processes
wait for the same memory; where it does not, they wait for each other or for another job.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import ttrace
from benchmarks.scale.cases import Case, case
from ttrace.analysis.engine import Engine, Job, Processes, Serial, Workplace
from ttrace.analysis.engine.capacity import cores as cores_here
from ttrace.measure.kernel import compiled_library
from ttrace.report.json_file import dumps

_COUNTS = (1, 2, 4, 8, 16)
_ROUNDS = 2  # chosen: the best of them counts, of one process the only one
_TICK = os.sysconf("SC_CLK_TCK")
_BATCH = 64 << 20  # what a batch costs at least: such a job is one by itself
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """Of the traces, and how often they are read."""

    tensors: int = 64
    perturbed: int = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Says which process did it, and leaves the others time to take one, too."""

    cost: int = _BATCH

    @property
    def name(self) -> str:
        return "present"

    def run(self, place: Workplace) -> int:
        time.sleep(0.02)
        return os.getpid()


class Shared(Engine):
    """An engine that was entered before a check, and is left after it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def map(self, jobs: Sequence[Job[_T]], here: Workplace) -> Iterator[tuple[int, _T]]:
        return self._engine.map(jobs, here)


class Timed(NamedTuple):
    """A check, beyond the start of its processes."""

    seconds: float
    starting: float
    cpu_seconds: float
    result: str


def cores(size: Size = Size()) -> str:  # noqa: B008  (it is frozen)
    """The table: a row for every number of processes that has a core for each."""
    if compiled_library() is None:
        raise SystemExit("there is no compiled kernel: python build_kernel.py makes it")
    with case(is_right=True, tensors=size.tensors, perturbed=size.perturbed) as found:
        counts = [count for count in _COUNTS if count <= cores_here()]
        timed = {count: _said(count, _best(found, count)) for count in counts}
        reading = _reading(found.files)
        if len({each.result for each in timed.values()}) > 1:
            raise SystemExit("several processes found something else than one")
        return "\n".join(_rows(found, timed, reading))


def _said(count: int, found: Timed) -> Timed:
    """Said at once: the machine may be gone before the table is."""
    told = f"{count} processes: {found.seconds:.1f} s, of CPU {found.cpu_seconds:.1f}"
    print(told, file=sys.stderr, flush=True)
    return found


def _rows(found: Case, timed: dict[int, Timed], reading: float) -> Iterator[str]:
    yield (
        "| processes | GB read | starting, s | checking, s | faster | of CPU, s | GB/s a core "
        "| of reading alone |"
    )
    yield "|---|---|---|---|---|---|---|---|"
    for count, each in timed.items():
        rate = found.read_bytes / each.seconds / count
        yield (
            f"| {count} | {found.read_bytes / 1e9:.0f} | {each.starting:.1f} | {each.seconds:.1f} "
            f"| {timed[1].seconds / each.seconds:.2f}x | {each.cpu_seconds:.1f} "
            f"| {rate / 1e9:.1f} | {rate / reading:.2f} |"
        )


def _best(found: Case, count: int) -> Timed:
    rounds = 1 if count == 1 else _ROUNDS
    return min((_timed(found, count) for _ in range(rounds)), key=lambda each: each.seconds)


def _timed(found: Case, count: int) -> Timed:
    engine: Engine = Serial() if count == 1 else Processes(count)
    begun = time.perf_counter()
    with engine:
        workers = {os.getpid(), *_present(engine, count)}
        started, before = time.perf_counter(), _cpu_seconds(workers)
        result = ttrace.check(
            found.folder / "reference",
            found.folder / "candidate",
            perturbed=[found.folder / "perturbed"] * found.perturbed,
            engine=Shared(engine),
        )
        seconds = time.perf_counter() - started
        used = _cpu_seconds(workers) - before
    return Timed(seconds, started - begun, used, dumps(_without_seconds(result.to_dict())))


def _present(engine: Engine, count: int) -> set[int]:
    """All workers, each of which has answered once."""
    seen: set[int] = set()
    with Workplace() as here:
        while len(seen) < count:
            seen |= {process for _, process in engine.map([Present()] * (2 * count), here)}
    return seen


def _cpu_seconds(processes: set[int]) -> float:
    fields = (Path(f"/proc/{each}/stat").read_text().rpartition(")")[2] for each in processes)
    return sum(sum(map(int, each.split()[11:13])) for each in fields) / _TICK


def _reading(files: Sequence[Path]) -> float:
    """Bytes a second that one process reads of these files, and does nothing with them."""
    buffer = bytearray(1 << 20)
    best = 0.0
    for _ in range(_ROUNDS):
        begun, size_bytes = time.perf_counter(), 0
        for path in files:
            with path.open("rb", buffering=0) as file:
                while count := file.readinto(buffer):
                    size_bytes += count
        best = max(best, size_bytes / (time.perf_counter() - begun))
    return best


def _without_seconds(result: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in result.items() if key != "seconds"}
