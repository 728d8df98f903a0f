"""Reading spans: the bytes behind a record, verified, in memory that does not grow with the tensor.

Enters: records of a trace. Leaves: their bytes, or an error that names the record with other bytes.
Spans are read into buffers of the caller, and files are never mapped: mapped pages count as memory
of the process. It must not know how a journal is read; what the bytes mean, a payload knows.
"""

from __future__ import annotations

import math
import os
import re
from collections import OrderedDict
from pathlib import Path
from types import TracebackType
from typing import Self

import numpy as np
import torch
import xxhash

from ttrace.core.record import SEGMENT, Location, Record
from ttrace.errors import CorruptTrace, UsageError
from ttrace.trace import journal
from ttrace.trace.payload import Span
from ttrace.trace.payloads import payload_of

# Chosen: the readers of a check, 4 or 5, stay below the usual limit of 1024 for a process. Records
# of a tensor are read rank by rank: with fewer files than ranks each read would open one.
_OPEN_FILES = 192
_BUFFER_BYTES = 1 << 20  # chosen: fits a core's L2 cache


class SpanReader:
    """Reads byte spans of the records of the trace at `path`, and verifies what it reads.

    A record that is read from its start on, in order, is verified on the way; `finish` reads what
    is left of it, or all of it again. Records that share their bytes are verified once.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._files: OrderedDict[tuple[int, str], int] = OrderedDict()
        self._paths: dict[tuple[int, str], Path] = {}  # that were found to be in the trace
        self._running: dict[tuple[int, Location], _RunningHash] = {}
        self._verified: set[tuple[int, Location]] = set()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        while self._files:
            os.close(self._files.popitem()[1])

    def read(
        self, record: Record, start: int, size: int, into: memoryview | None = None
    ) -> memoryview:
        """Bytes start : start + size of a record, at the front of `into` or in new memory."""
        location = _location(record)
        if start < 0 or size < 0 or start + size > location.size_bytes:
            raise UsageError(
                f"bytes {start}:{start + size} were asked of {record.id} of rank {record.rank}, "
                f"which has {location.size_bytes}"
            )
        buffer = np.empty(size, np.uint8).data if into is None else _as_bytes(into)
        if buffer.nbytes < size:
            raise UsageError(f"a buffer of {buffer.nbytes} bytes cannot take {size} of {record.id}")
        buffer = buffer[:size]
        self._fill(record, location, start, buffer)
        key = (record.rank, location)
        if key not in self._verified:
            if start == 0:
                self._running[key] = _RunningHash()
            running = self._running.get(key)
            if running is not None and running.position == start:
                running.update(buffer)
            else:
                self._running.pop(key, None)
        return buffer

    def whole(self, record: Record) -> memoryview:
        """All bytes of a record, verified; for those that are small."""
        location = _location(record)
        buffer = np.empty(location.size_bytes, np.uint8).data
        self._fill(record, location, 0, buffer)
        key = (record.rank, location)
        if key not in self._verified:
            self._require(record, location, xxhash.xxh3_64_hexdigest(buffer))
            self._running.pop(key, None)
        return buffer

    def finish(self, record: Record) -> None:
        """Raise CorruptTrace unless the bytes of the record are those that were written."""
        location = _location(record)
        key = (record.rank, location)
        if key in self._verified:
            return
        if location.size_bytes <= _BUFFER_BYTES and key not in self._running:
            self.whole(record)
            return
        running = self._running.pop(key, None) or _RunningHash()
        left = location.size_bytes - running.position
        buffer = np.empty(min(_BUFFER_BYTES, left), np.uint8).data
        while left := location.size_bytes - running.position:
            part = buffer[:left]
            self._fill(record, location, running.position, part)
            running.update(part)
        self._require(record, location, running.hexdigest())

    def _require(self, record: Record, location: Location, found: str) -> None:
        if found != location.xxh3:
            raise CorruptTrace(
                f"the bytes of {record.id} were changed after they were written: rank "
                f"{record.rank}, file {segment_path(self.path, record)}, offset "
                f"{location.offset}, {location.size_bytes} bytes; their xxh3 is {found}, "
                f"the journal says {location.xxh3}; copy the trace again or trace the run again"
            )
        self._verified.add((record.rank, location))

    def load(self, record: Record) -> torch.Tensor:
        """The whole tensor of a record, verified."""
        payload = payload_of(record)
        room = torch.empty(math.prod(record.shape), dtype=payload.read_dtype(record))
        values = payload.read(Span(record, 0, room, self.read))
        self.finish(record)
        return values.reshape(record.shape)

    def _fill(self, record: Record, location: Location, start: int, buffer: memoryview) -> None:
        fd, position = self._open(record, location), location.offset + start
        while buffer.nbytes:
            count = os.preadv(fd, [buffer], position)
            if count == 0:
                raise too_short(self.path, record, position)
            position += count
            buffer = buffer[count:]

    def _open(self, record: Record, location: Location) -> int:
        key = (record.rank, location.segment)
        fd = self._files.get(key)
        if fd is None:
            path = self._paths.get(key)
            if path is None:
                path = self._paths[key] = own_segment(self.path, record)
            fd = self._files[key] = os.open(path, os.O_RDONLY)
            if len(self._files) > _OPEN_FILES:
                os.close(self._files.popitem(last=False)[1])
        self._files.move_to_end(key)
        return fd


class _RunningHash:
    """The xxh3 of the first `position` bytes of a record."""

    def __init__(self) -> None:
        self.position = 0
        self._hash = xxhash.xxh3_64()

    def update(self, data: memoryview) -> None:
        self._hash.update(data)
        self.position += data.nbytes

    def hexdigest(self) -> str:
        digest: str = self._hash.hexdigest()
        return digest


def segment_path(root: Path, record: Record) -> Path:
    """The file with the bytes of a record; a name that could lead elsewhere is refused."""
    segment = _location(record).segment
    if not re.fullmatch(SEGMENT, segment):
        raise CorruptTrace(
            f"the journal of rank {record.rank} in {root} puts {record.id} into the file "
            f"{segment!r}: expected a name such as seg-00000.safetensors; do not trust this trace"
        )
    return root / journal.rank_folder(record.rank) / segment


def own_segment(root: Path, record: Record) -> Path:
    path = segment_path(root, record)
    return own_file(root, path, holds=f"{record.id} of rank {record.rank}")


def own_file(root: Path, path: Path, *, holds: str) -> Path:
    """The path, unless it is no regular file inside of the trace: strangers make traces too."""
    if not path.is_file():
        raise CorruptTrace(
            f"{path} is {'not a regular file' if path.exists() else 'missing'}, expected it to "
            f"hold {holds}; copy the trace again or trace the run again"
        )
    if not path.resolve().is_relative_to(root.resolve()):
        raise CorruptTrace(
            f"{path} leads out of the trace {root}, expected it to hold {holds}; put the file "
            f"itself there if you trust it"
        )
    return path


def too_short(root: Path, record: Record, size_bytes: int) -> CorruptTrace:
    return CorruptTrace(
        f"{segment_path(root, record)} ends at byte {size_bytes}, before the end of {record.id} of "
        f"rank {record.rank}: the file was cut off; copy the trace again or trace the run again"
    )


def _location(record: Record) -> Location:
    if record.location is None:
        raise UsageError(
            f"{record.id} of rank {record.rank} has no bytes of its own; read "
            f"{record.same_as}, the same tensor"
        )
    return record.location


def _as_bytes(view: memoryview) -> memoryview:
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
