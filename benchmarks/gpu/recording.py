"""What recording fingerprints of a step costs on a GPU, beside the same steps without."""

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
from benchmarks.gpu.model import GptConfig, make_workload
from ttrace.capture.settings import Settings, without_settings

_STEPS = 8  # chosen: the median of these, after as many that warm up


class Cost(NamedTuple):
    """Of steps of one model, recorded in one way."""

    name: str
    seconds: float  # a step, the median
    recorded_bytes: int  # of a step
    peak_bytes: int  # of GPU memory


def cost(
    name: str, config: GptConfig, payload: str | None, device: str = "cuda", steps: int = _STEPS
) -> Cost:
    """Of steps that are recorded in this form, into memory; or not at all."""
    where = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=where) as folder, _told(folder, payload, 2 * steps):
        work = make_workload(config, device)
        tracer = ttrace.attach(work.model, work.optimizer)
        if device == "cuda":
            torch.cuda.reset_peak_memory_stats()

        def traced() -> None:
            with tracer.step():
                work.step()

        seconds = _median_seconds(traced, device, steps)
        peak = torch.cuda.max_memory_allocated() if device == "cuda" else 0
        written = sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file())
    return Cost(name, seconds, written // (2 * steps), peak)


def _median_seconds(step: Callable[[], None], device: str, steps: int) -> float:
    found = []
    for _ in range(2 * steps):
        if device == "cuda":
            torch.cuda.synchronize()
        start = time.perf_counter()
        step()
        if device == "cuda":
            torch.cuda.synchronize()
        found.append(time.perf_counter() - start)
    return statistics.median(found[steps:])


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
