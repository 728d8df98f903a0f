"""Engines: who measures the pairs of a comparison, one after the other or many at once.

A unit of work is plain data (two logical tensors and a scale); what it leaves is plain data too, so
tensors never travel: whoever measures a unit reads the bytes from the traces itself.

    Serial()        in this process
    Processes(8)    in eight others of this machine

Further engines (a cluster's) come by the entry point group `ttrace.engines`: the name of an engine
and a callable without arguments that makes it.
"""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack
from importlib.metadata import entry_points
from pathlib import Path
from typing import Protocol

from ttrace.analysis.compare import Comparator, Measured, Unit
from ttrace.errors import UsageError
from ttrace.trace.spans import SpanReader

ENGINES = "ttrace.engines"
_UNITS_AT_ONCE = 8  # chosen: a unit takes about a millisecond or more, a message far less


class Engine(Protocol):
    """Measures every unit, in their order."""

    def measure(
        self, reference: SpanReader, candidate: SpanReader, units: Sequence[Unit]
    ) -> Iterator[Measured]:
        """What each unit's pair measures; a reader's `path` serves who reads elsewhere."""


class Serial:
    """One unit after the other, in this process."""

    def measure(
        self, reference: SpanReader, candidate: SpanReader, units: Sequence[Unit]
    ) -> Iterator[Measured]:
        comparator = Comparator(reference, candidate)
        for unit in units:
            yield comparator.measure_unit(unit)


class Processes:
    """So many processes of this machine, each with files of its own."""

    def __init__(self, workers: int) -> None:
        if workers < 1:
            raise UsageError(f"an engine needs at least one worker, found {workers}")
        self._workers = workers

    def measure(
        self, reference: SpanReader, candidate: SpanReader, units: Sequence[Unit]
    ) -> Iterator[Measured]:
        with ProcessPoolExecutor(
            max_workers=min(self._workers, max(1, len(units))),
            # Forked processes would inherit torch's threads as they stand, and hang.
            mp_context=multiprocessing.get_context("spawn"),
            initializer=_Worker.start,
            initargs=(reference.path, candidate.path),
        ) as pool:
            yield from pool.map(_Worker.measure, units, chunksize=_UNITS_AT_ONCE)


class _Worker:
    """What a process of a pool keeps between units: open files, and memory for blocks."""

    _stack = ExitStack()
    _comparator: Comparator | None = None

    @classmethod
    def start(cls, reference: Path, candidate: Path) -> None:
        expected, found = (cls._stack.enter_context(SpanReader(p)) for p in (reference, candidate))
        cls._comparator = Comparator(expected, found)

    @classmethod
    def measure(cls, unit: Unit) -> Measured:
        assert cls._comparator is not None
        return cls._comparator.measure_unit(unit)


def find_engine(name: str | None = None, workers: int = 1) -> Engine:
    """The engine of this name; without one, as many processes as there are workers."""
    if name is None:
        return Serial() if workers == 1 else Processes(workers)
    found = {point.name: point for point in entry_points(group=ENGINES)}
    if name not in found:
        known = ", ".join(sorted(found)) or "none is installed"
        raise UsageError(
            f"no engine is called {name!r}; engines come by entry points of {ENGINES}: {known}"
        )
    engine: Engine = found[name].load()()
    return engine
