"""The engine of a check that nobody asked for one: processes where there is enough to read.

Workers cost about as much as they save where little is to be measured, so what traces have on disk
decides, before they are opened.
"""

from __future__ import annotations

from collections.abc import Sequence

from ttrace.analysis.engine.base import Engine, Serial
from ttrace.analysis.engine.capacity import room_for_workers
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
