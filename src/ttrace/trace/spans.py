"""Reading spans: the bytes behind a record, verified, in memory that does not grow with the tensor.

Enters: records of a trace. Leaves: their bytes, or an error that names the record with other bytes.
Spans are read into buffers of the caller, and files are never mapped: mapped pages count as memory
of the process. It must not know how a journal is read; what the bytes mean, a payload knows.
"""

from __future__ import annotations

import math
from types import TracebackType
from typing import Self

import numpy as np
import torch
import xxhash

from ttrace.core.record import Location, Record
from ttrace.errors import CorruptTrace, UsageError
from ttrace.trace.payload import Span
from ttrace.trace.payloads import payload_of
from ttrace.trace.ranges import Ranges
from ttrace.trace.segment_bytes import (
    OpenFiles,
    SegmentBytes,
    location_of,
    segment_name,
    too_short,
)
from ttrace.trace.store import PathOrUrl, Url

_BUFFER_BYTES = 1 << 20  # chosen: fits a core's L2 cache
# Measured: to read so many bytes again takes about as long as to know that they were verified.
_SMALL_BYTES = 1 << 12


class SpanReader:
    """Reads byte spans of the records of the trace at `path`, and verifies what it reads.

    A record that is read from its start on, in order, is verified on the way; `finish` reads what
    is left of it, or all of it again. Records that share their bytes are verified once; small ones
    are whenever they are finished.
    """

    def __init__(self, path: PathOrUrl) -> None:
        self.path = path
        self._bytes: SegmentBytes = Ranges(path) if isinstance(path, Url) else OpenFiles(path)
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
        self._bytes.close()

    def read(
        self, record: Record, start: int, size: int, into: memoryview | None = None
    ) -> memoryview:
        """Bytes start : start + size of a record, at the front of `into` or in new memory."""
        location = location_of(record)
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

    def whole(self, record: Record) -> bytes:
        """All bytes of a record, verified; for those that are small."""
        location = location_of(record)
        data = self._bytes.some(record, location)
        if len(data) < location.size_bytes:  # more than one call reads, or a file that was cut off
            rest = memoryview(bytearray(location.size_bytes - len(data)))
            self._fill(record, location, len(data), rest)
            data += rest
        self._require(record, location, xxhash.xxh3_64_hexdigest(data))
        return data

    def finish(self, record: Record) -> None:
        """Raise CorruptTrace unless the bytes of the record are those that were written."""
        location = location_of(record)
        key = (record.rank, location)
        is_running = bool(self._running) and key in self._running
        if location.size_bytes <= _SMALL_BYTES and not is_running:
            self.whole(record)
            return
        if key in self._verified:
            return
        running = self._running.pop(key, None) or _RunningHash()
        left = location.size_bytes - running.position
        buffer = np.empty(min(_BUFFER_BYTES, left), np.uint8).data
        while left := location.size_bytes - running.position:
            part = buffer[:left]
            self._fill(record, location, running.position, part)
            running.update(part)
        self._require(record, location, running.hexdigest())
        self._verified.add(key)

    def _require(self, record: Record, location: Location, found: str) -> None:
        if found != location.xxh3:
            raise CorruptTrace(
                f"the bytes of {record.id} were changed after they were written: rank "
                f"{record.rank}, file {self.path / segment_name(self.path, record)}, offset "
                f"{location.offset}, {location.size_bytes} bytes; their xxh3 is {found}, "
                f"the journal says {location.xxh3}; copy the trace again or trace the run again"
            )

    def load(self, record: Record) -> torch.Tensor:
        """The whole tensor of a record, verified."""
        payload = payload_of(record)
        room = torch.empty(math.prod(record.shape), dtype=payload.read_dtype(record))
        values = payload.read(Span(record, 0, room, self.read))
        self.finish(record)
        return values.reshape(record.shape)

    def _fill(self, record: Record, location: Location, start: int, buffer: memoryview) -> None:
        while buffer.nbytes:
            count = self._bytes.fill(record, location, start, buffer)
            if count == 0:
                raise too_short(self.path, record, location.offset + start)
            start += count
            buffer = buffer[count:]


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


def _as_bytes(view: memoryview) -> memoryview:
    return view if view.format == "B" and view.ndim == 1 else view.cast("B")
