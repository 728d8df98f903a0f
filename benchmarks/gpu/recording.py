"""What recording fingerprints of a step costs on a GPU, beside the same steps without.

Steps are timed as a training loop makes them: one after the other, and the clock stops when the
device has done the last. A loop that reads its loss waits after every step: that is timed, too.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import torch

import ttrace
from benchmarks.gpu.model import Workload
from ttrace.capture.settings import Settings, without_settings
from ttrace.trace.reader import Trace

_STEPS = 8  # chosen: of a loop; the first that are recorded compile kernels
_LOOPS = 3  # chosen: the median of these, after one that warms up


class Cost(NamedTuple):
    """Of steps of one model, recorded in one way."""

    name: str
    seconds: float  # a step of a loop
    synced_seconds: float  # a step after each of which the loop waits
    recorded_bytes: int  # of a step
    peak_bytes: int  # of GPU memory
    faults: tuple[str, ...] = ()  # of the recording, and its notes


def cost(
    name: str,
    make: Callable[[str], Workload],
    payload: str | None,
    device: str = "cuda",
    steps: int = _STEPS,
) -> Cost:
    """Of steps that are recorded in this form, into memory; or not at all. `make` on a device."""
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None
    count = steps * (_LOOPS + 2)
    with tempfile.TemporaryDirectory(dir=where) as folder, _told(folder, payload, count):
        work = make(device)
        tracer = ttrace.attach(work.model, work.optimizer)

        def step() -> None:
            with tracer.step():
                work.step()

        def loop(*, waits: bool = False) -> float:
            _wait(device)
            start = time.perf_counter()
            for _ in range(steps):
                step()
                if waits:
                    _wait(device)
            _wait(device)
            return (time.perf_counter() - start) / steps

        loop()
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()
        found = [loop() for _ in range(_LOOPS)]
        synced = loop(waits=True)
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
        return Cost(
            name=name,
            seconds=statistics.median(found),
            synced_seconds=synced,
            recorded_bytes=written // count,
            peak_bytes=peak,
            faults=() if payload is None else _faults(Path(folder) / "trace"),
        )


def _faults(trace: Path) -> tuple[str, ...]:
    summary = Trace.open(trace).ranks[0].summary
    return ("the trace has no end",) if summary is None else (*summary.faults, *summary.notes)


def _wait(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


@contextmanager
def _told(folder: str, payload: str | None, steps: int) -> Iterator[None]:
    """The environment of a run that is recorded so, or not at all."""
    before = dict(os.environ)
    os.environ.clear()
    os.environ.update(without_settings(before))
    if payload is not None:
        settings = Settings(folder=Path(folder) / "trace", steps=steps, payload=payload)
        os.environ.update(settings.to_environment())
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)
