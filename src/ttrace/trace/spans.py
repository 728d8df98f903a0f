"""Reading spans: the bytes behind a record, verified, in memory that does not grow with the tensor.

    here, a read             is one of an open file
    behind a URL, a large    is one range, of just these bytes
                  a small    comes from an aligned block that is kept

Enters: records of a trace. Leaves: their bytes, or an error that names the record with other bytes;
a name that could lead elsewhere is refused. The records of a tensor are read rank by rank, so that
every file of a trace is read in small pieces at the same time: all share what is kept open, or the
memory for blocks. Spans are read into buffers of the caller, and files are never mapped: mapped
pages count as memory of the process. It must not know how a journal is read; what the bytes mean, a
payload knows.
"""

from __future__ import annotations

import functools
import math
import os
import re
import resource
from collections import OrderedDict
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

import numpy as np
import torch
import xxhash

from ttrace.core.record import SEGMENT, Location, Record
from ttrace.errors import CorruptTrace, UsageError
from ttrace.trace import journal
from ttrace.trace.files import AT_ONCE, LocalFiles, RemoteFiles, TraceFiles
from ttrace.trace.payload import Span
from ttrace.trace.payloads import payload_of
from ttrace.trace.store import RANGE_BYTES, PathOrUrl, Url, read_ranges

# With fewer files than ranks each read would open one. A check has 4 or 5 readers; chosen: that all
# of them together stay below what a process may open.
_READERS, _OTHER_FILES, _FEWEST, _MOST = 5, 64, 64, 4096
_KEPT_BYTES = 256 << 20  # chosen: the readers of a check take about a gigabyte
# Chosen: such a range takes a few times as long as an empty one, 20 ms or more, and no longer.
_LEAST_BLOCK_BYTES = 64 << 10

_Block = tuple[str, int]  # of a file: how many lie in front of it


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


class FetchedBlocks:
    """Of a trace behind a URL, which is listed when the first bytes are read."""

    def __init__(self, root: Url) -> None:
        self._root = root
        self._blocks: OrderedDict[_Block, bytes] = OrderedDict()
        self._last: _Block | None = None  # that was read

    def some(self, record: Record, location: Location) -> bytes:
        data = bytearray(location.size_bytes)
        return bytes(data[: self.fill(record, location, 0, memoryview(data))])

    def fill(self, record: Record, location: Location, start: int, buffer: memoryview) -> int:
        name, position = segment_name(self._root, record), location.offset + start
        left = segment_size(self._files, record) - position  # CorruptTrace where it is missing
        size_bytes = max(0, min(buffer.nbytes, RANGE_BYTES, left))
        if size_bytes == 0:
            return 0
        if size_bytes >= self._block_bytes:
            data = (self._root / name).read_range(position, position + size_bytes)
        else:
            number, offset = divmod(position, self._block_bytes)
            data = self._block((name, number))[offset : offset + size_bytes]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        self._blocks.clear()

    @functools.cached_property
    def _files(self) -> RemoteFiles:
        return RemoteFiles(self._root)

    @functools.cached_property
    def _order(self) -> dict[str, int]:
        """The first segments of all ranks, then their second ones, and so on; with their places."""
        names = sorted(self._files.segments(), key=lambda name: name.partition("/")[::-1])
        return {name: place for place, name in enumerate(names)}

    @functools.cached_property
    def _block_bytes(self) -> int:
        """As many as leave room for two blocks of each file."""
        share = _KEPT_BYTES // (2 * max(1, len(self._order)))
        return min(RANGE_BYTES, max(_LEAST_BLOCK_BYTES, 1 << share.bit_length() - 1))

    def _block(self, block: _Block) -> bytes:
        """One that is kept, or fetched together with those that will be asked for soon."""
        if block not in self._blocks:
            most, size_bytes = _KEPT_BYTES // self._block_bytes, self._block_bytes
            blocks = [block, *self._following(block)][:most]
            ranges = [
                (self._root / name, n * size_bytes, (n + 1) * size_bytes) for name, n in blocks
            ]
            self._blocks.update(zip(blocks, read_ranges(ranges), strict=True))
            while len(self._blocks) > most:
                self._blocks.popitem(last=False)
        self._blocks.move_to_end(block)
        self._last = block
        return self._blocks[block]

    def _following(self, block: _Block) -> Iterator[_Block]:
        """The same blocks of the files that follow, where one file is read after the other."""
        name, number = block
        here = self._order[name]
        near = [*islice(self._order, max(0, here - 1), here + AT_ONCE)]
        if here and self._last == (near[0], number):
            for other in near[2:]:
                size_bytes = self._files.size(other, holds="bytes of records")
                if size_bytes > number * self._block_bytes and (other, number) not in self._blocks:
                    yield other, number


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
        self._bytes: SegmentBytes = (
            FetchedBlocks(path) if isinstance(path, Url) else OpenFiles(path)
        )
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
