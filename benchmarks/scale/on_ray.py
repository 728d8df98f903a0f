"""A cluster of Ray on this machine: the same result, and what it adds to every job.

Jobs that do nothing tell what their way costs; the check tells that what comes back is the same.
"""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.scale.cases import case, run
from ttrace.analysis.engine import Engine, Processes, Workplace, find_engine

JOBS = 2_000  # chosen
_ALONE = 32  # so many of one cost are each a batch, of two workers
_WORKERS = 2
_BATCH = 64 << 20  # what a batch costs at least: such a job is one by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A job that is over at once."""

    number: int
    cost: int

    @property
    def name(self) -> str:
        return str(self.number)

    def run(self, place: Workplace) -> int:
        return self.number


def on_ray() -> str:
    with case(is_right=False) as found:
        seconds = {}
        for name, options in (("alone", ("--workers", "1")), ("ray", ("--engine", "ray"))):
            start = time.perf_counter()
            workers = ("--workers", str(_WORKERS)) if name == "ray" else ()
            run(found.command(name, *options, *workers), code=1)
            seconds[name] = time.perf_counter() - start
        if found.result("alone") != found.result("ray"):
            raise SystemExit("Ray found something else than one process")
    ray = find_engine("ray", _WORKERS)
    assert ray is not None
    lines = [
        "| engine of 2 workers | starts in, s | a job among a hundred, us | a job by itself, us |",
        "|---|---|---|---|",
    ]
    for name, engine in (("processes", Processes(_WORKERS)), ("ray", ray)):
        lines.append(f"| {name} | " + " | ".join(_costs(engine)) + " |")
    told = f"The check took {seconds['ray']:.1f} s with Ray and its start, {seconds['alone']:.1f} s"
    return "\n".join([*lines, "", f"{told} in one process, with the same result."])


def _costs(engine: Engine) -> list[str]:
    begin = time.perf_counter()
    with engine, Workplace() as here:
        list(engine.map([Nothing(number=n, cost=_BATCH) for n in range(4)], here))
        started = time.perf_counter() - begin
        each = []
        for count, cost in ((JOBS, _BATCH // 100), (_ALONE, _BATCH)):
            jobs = [Nothing(number=n, cost=cost) for n in range(count)]
            begin = time.perf_counter()
            for _ in range(JOBS // count):
                assert len(list(engine.map(jobs, here))) == count
            each.append((time.perf_counter() - begin) / JOBS)
    return [f"{started:.1f}", *(f"{seconds * 1e6:.0f}" for seconds in each)]
