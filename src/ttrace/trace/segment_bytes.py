"""The bytes of segments: where a record's are, and how those of a folder here are read.

Enters: records. Leaves: bytes that nobody has verified yet; a name that could lead elsewhere is
refused.
"""

from __future__ import annotations

import os
import re
import resource
from collections import OrderedDict
from pathlib import Path
from typing import Protocol

from ttrace.core.record import SEGMENT, Location, Record
from ttrace.errors import CorruptTrace, UsageError
from ttrace.trace import journal
from ttrace.trace.files import LocalFiles, TraceFiles
from ttrace.trace.store import PathOrUrl

# Records of a tensor are read rank by rank: with fewer files than ranks each read would open one. A
# check has 4 or 5 readers; chosen: that all of them together stay below what a process may open.
_READERS, _OTHER_FILES, _FEWEST, _MOST = 5, 64, 64, 4096


class SegmentBytes(Protocol):
    """Reads the bytes of records from their segments."""

    def some(self, record: Record, location: Location) -> bytes:
        """The first bytes of a record, all of them where one read gives so many."""

    def fill(self, record: Record, location: Location, start: int, buffer: memoryview) -> int:
        """How many bytes from `start` on are in front of `buffer` now; 0 where the file ends."""

    def close(self) -> None: ...


class OpenFiles:
    """Of a trace in a folder of this machine: some of its files are kept open."""

    def __init__(self, root: Path) -> None:
        self._trace = LocalFiles(root)
        self._most = most_open_files()
        self._files: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._paths: dict[tuple[int, str], Path] = {}  # that were found to be in the trace

    def some(self, record: Record, location: Location) -> bytes:
        return os.pread(self._open(record, location), location.size_bytes, location.offset)

    def fill(self, record: Record, location: Location, start: int, buffer: memoryview) -> int:
        return os.preadv(self._open(record, location), [buffer], location.offset + start)

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def _open(self, record: Record, location: Location) -> int:
        key = (record.rank, location.segment)
        fd = self._files.get(key)
        if fd is None:
            path = self._paths.get(key)
            if path is None:
                name = segment_name(self._trace.place, record)
                path = self._paths[key] = self._trace.own(name, holds=_what(record))
            fd = self._files[key] = os.open(path, os.O_RDONLY)
            if len(self._files) > self._most:
                os.close(self._files.popitem(last=False)[1])
        self._files.move_to_end(key)
        return fd


def most_open_files() -> int:
    """How many files a reader keeps open."""
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    return max(_FEWEST, min(_MOST, (allowed - _OTHER_FILES) // _READERS))


def segment_name(root: PathOrUrl, record: Record) -> str:
    """The file with the bytes of a record, in the trace at `root`."""
    segment = location_of(record).segment
    if not re.fullmatch(SEGMENT, segment):
        raise CorruptTrace(
            f"the journal of rank {record.rank} in {root} puts {record.id} into the file "
            f"{segment!r}: expected a name such as seg-00000.safetensors; do not trust this trace"
        )
    return f"{journal.rank_folder(record.rank)}/{segment}"


def segment_size(files: TraceFiles, record: Record) -> int:
    """Of the file with the bytes of a record."""
    return files.size(segment_name(files.place, record), holds=_what(record))


def too_short(root: PathOrUrl, record: Record, size_bytes: int) -> CorruptTrace:
    return CorruptTrace(
        f"{root / segment_name(root, record)} ends at byte {size_bytes}, before the end of "
        f"{record.id} of rank {record.rank}: the file was cut off; copy the trace again or trace "
        f"the run again"
    )


def location_of(record: Record) -> Location:
    """Where its bytes are; UsageError where it has none."""
    if record.location is None:
        raise UsageError(
            f"{record.id} of rank {record.rank} has no bytes of its own; read "
            f"{record.same_as}, the same tensor"
        )
    return record.location


def _what(record: Record) -> str:
    return f"{record.id} of rank {record.rank}"
