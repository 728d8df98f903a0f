"""Segments: append-only files of tensor bytes that become valid `.safetensors` when sealed.

    0        8                  header_bytes          aligned                aligned
    | length | JSON, then spaces | bytes of a tensor | pad | bytes of a tensor | ...

Enters: bytes with a dtype, a shape and a name. Leaves: files seg-00000.safetensors and on, and the
place of every tensor in them. It must not know what a record or a journal is.

Several threads may write at once: each reserves its bytes, and only that takes turns.

The header is written last, so an unsealed file is no safetensors file; its tensors are found by
the journal. safetensors allows no gaps between tensors, so the alignment gaps are tensors
themselves, named `__pad0` and on: foreign readers should skip names that start with `__pad`.
"""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Sequence
from pathlib import Path

import xxhash

from ttrace.core.record import Location
from ttrace.errors import UsageError
from ttrace.trace.dtypes import BYTE, safetensors_name

ALIGNMENT = 64  # a cache line, and the widest vector load
ENTRY_BYTES = 1 << 13  # the longest entry and its pad: 512 chars of 12 bytes, 64 dims of 20
# Measured on a busy machine with 2 MiB of L2 cache per core: about 13% less CPU time than hashing a
# whole tensor and then writing it; 64 KiB was slower, 512 KiB no better.
_CHUNK_BYTES = 1 << 18
_AT_ONCE = 1024  # parts that Linux takes in one call
_LENGTH_BYTES = 8  # safetensors: the header's length, little endian, opens the file
_METADATA = '{"__metadata__":{"format":"pt","made_by":"ttrace"}'
EMPTY_HEADER_BYTES = _LENGTH_BYTES + len(_METADATA) + len("}")
MAX_BYTES = 1 << 30  # chosen: large enough that rolling costs nothing, small enough to copy around
HEADER_BYTES = 1 << 18  # chosen: about 1,200 tensors, as many as fill MAX_BYTES at 1 MB each
ENTRY_NAME_CHARS = 512  # chosen; a longer name is cut, the journal has all of it


class SegmentWriter:
    """Appends tensors to segment files in `folder` and rolls to a new file when one is full."""

    def __init__(
        self,
        folder: Path,
        *,
        first: int = 0,
        max_bytes: int = MAX_BYTES,
        header_bytes: int = HEADER_BYTES,
    ) -> None:
        if header_bytes < 2 * ENTRY_BYTES or header_bytes % ALIGNMENT:
            raise UsageError(
                f"a segment header takes a multiple of {ALIGNMENT} bytes and at least "
                f"{2 * ENTRY_BYTES}, found {header_bytes}"
            )
        self._folder = folder
        self._max_bytes = max_bytes
        self._header_bytes = header_bytes
        self._count = first  # of those that are there already
        self._current: Segment | None = None
        self._full: list[Segment] = []  # into which somebody still writes
        self._closed_bytes = 0

    @property
    def count(self) -> int:
        """Of all files, with those that were there before."""
        return self._count

    @property
    def size_bytes(self) -> int:
        """Of all files that it wrote."""
        full_bytes = sum(segment.size_bytes for segment in self._full) if self._full else 0
        current_bytes = 0 if self._current is None else self._current.size_bytes
        return self._closed_bytes + full_bytes + current_bytes

    def append(
        self, data: memoryview, *, dtype: str | None, shape: Sequence[int], name: str
    ) -> Location:
        """Write bytes, those of a tensor where a dtype is given; where they are, with a checksum.

        A failed write (a full disk) raises OSError and leaves all earlier tensors as they were.
        """
        reserved = self.reserve(data.nbytes)
        try:
            reserved.write(data)
        except BaseException:
            self.give_back(reserved)
            raise
        return self.keep(reserved, dtype=dtype, shape=shape, name=name)

    def reserve(self, size_bytes: int) -> Reserved:
        """Room for bytes that come in pieces; `keep` it once they are all there."""
        if self._current is not None and not self._current.has_room(size_bytes, self._max_bytes):
            self._end_current()
        if self._current is None:
            self._current = Segment(
                self._folder / f"seg-{self._count:05d}.safetensors", self._header_bytes
            )
            self._count += 1
        return self._current.reserve(size_bytes)

    def keep(
        self, reserved: Reserved, *, dtype: str | None, shape: Sequence[int], name: str
    ) -> Location:
        """All of its bytes are written: it is a tensor of its segment."""
        stored = safetensors_name(dtype) if dtype else None
        location = reserved.segment.keep(
            reserved,
            dtype=stored or BYTE,
            shape=shape if stored else (reserved.size_bytes,),
            name=name[:ENTRY_NAME_CHARS],
        )
        self._seal_full(reserved.segment)
        return location

    def give_back(self, reserved: Reserved) -> None:
        """Nothing is to be there."""
        reserved.segment.give_back(reserved)
        self._seal_full(reserved.segment)

    def seal(self) -> None:
        """Make the open segment a valid safetensors file; the next append starts another."""
        if self._current is not None:
            self._end_current()

    def abandon(self) -> None:
        """Close the open segments as they are; the journal still finds their tensors."""
        for segment in (*self._full, *([] if self._current is None else [self._current])):
            segment.close()
            self._closed_bytes += segment.size_bytes
        self._current, self._full = None, []

    def _end_current(self) -> None:
        """Nothing more goes into it, and it is sealed when the last that writes into it is done."""
        assert self._current is not None
        segment, self._current = self._current, None
        self._full.append(segment)
        self._seal_full(segment)

    def _seal_full(self, segment: Segment) -> None:
        if self._full and segment in self._full and not segment.reservations:
            segment.seal()
            self._full.remove(segment)
            self._closed_bytes += segment.size_bytes


class Reserved:
    """Bytes of a segment that are written in pieces, by any thread; their checksum."""

    __slots__ = ("_hashed", "_written", "gap", "offset", "segment", "size_bytes")

    def __init__(self, segment: Segment, gap: int, offset: int, size_bytes: int) -> None:
        self.segment = segment
        self.gap = gap  # bytes before it that align it
        self.offset = offset
        self.size_bytes = size_bytes
        self._written = 0
        self._hashed = xxhash.xxh3_64()

    @property
    def is_whole(self) -> bool:
        return self._written == self.size_bytes

    @property
    def xxh3(self) -> str:
        """Of what was written."""
        digest: str = self._hashed.hexdigest()
        return digest

    def write(self, data: memoryview, chunk_bytes: int = _CHUNK_BYTES) -> None:
        """The next of its bytes, in chunks: each is hashed while the cache still holds it."""
        start = 0
        while start < data.nbytes:
            # Chunks end where pages of the file end: no page is touched by two writes.
            offset = self.offset + self._written
            chunk = data[start : start + chunk_bytes - offset % chunk_bytes]
            self.segment.write(chunk, offset)
            self._hashed.update(chunk)
            self._written += chunk.nbytes
            start += chunk.nbytes

    def write_all(self, parts: Sequence[memoryview]) -> None:
        """All of its bytes, in parts that have checksums of their own."""
        parts = [part for part in parts if part.nbytes]
        for first in range(0, len(parts), _AT_ONCE):
            some = parts[first : first + _AT_ONCE]
            size_bytes = sum(part.nbytes for part in some)
            self.segment.write_parts(some, self.offset + self._written, size_bytes)
            self._written += size_bytes


class Segment:
    """One open file. Offsets are from the start of the file, header included."""

    def __init__(self, path: Path, header_bytes: int) -> None:
        self.file_name = path.name
        self._header_bytes = header_bytes
        self._entries: list[str] = []
        self._entries_bytes = EMPTY_HEADER_BYTES
        self._names: set[str] = set()
        self._pads = 0
        self._end = header_bytes
        self.reservations = 0  # that are neither kept nor given back
        # One at a time: a file system lets no more write into a file, and who waits there spins.
        self._writing = threading.Lock()
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            # Real bytes, not a hole: the disk may be full by the time of the seal.
            self.write(memoryview(b" " * header_bytes), 0)
        except BaseException:
            self.close()
            path.unlink()
            raise

    def close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            os.close(fd)

    @property
    def size_bytes(self) -> int:
        return self._end

    def has_room(self, size_bytes: int, max_bytes: int) -> bool:
        entries_bytes = self._entries_bytes + ENTRY_BYTES * (1 + self.reservations)
        return entries_bytes <= self._header_bytes and self._end + size_bytes <= max_bytes

    def write(self, data: memoryview, offset: int) -> None:
        with self._writing:
            _write_all(self._fd, data, offset)

    def write_parts(self, parts: Sequence[memoryview], offset: int, size_bytes: int) -> None:
        written = os.pwritev(self._fd, parts, offset)
        if written < size_bytes:  # a nearly full disk raises only at the next call
            _write_all(self._fd, memoryview(b"".join(parts))[written:], offset + written)

    def reserve(self, size_bytes: int) -> Reserved:
        # Without bytes after it a gap would never be filled.
        gap = -self._end % ALIGNMENT if size_bytes else 0
        reserved = Reserved(self, gap, self._end + gap, size_bytes)
        self._end += gap + size_bytes
        self.reservations += 1
        return reserved

    def keep(self, reserved: Reserved, *, dtype: str, shape: Sequence[int], name: str) -> Location:
        assert reserved.is_whole, name
        self.reservations -= 1
        offset, size_bytes = reserved.offset, reserved.size_bytes
        self._pad(offset - reserved.gap, reserved.gap)
        while name in self._names:
            name = f"{name}~{len(self._names)}"
        self._names.add(name)
        self._enter(name, dtype, shape, offset, size_bytes)
        return Location(
            segment=self.file_name, offset=offset, size_bytes=size_bytes, xxh3=reserved.xxh3
        )

    def give_back(self, reserved: Reserved) -> None:
        self.reservations -= 1
        start, stop = reserved.offset - reserved.gap, reserved.offset + reserved.size_bytes
        if stop == self._end:
            self._end = start
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
        else:  # others wrote behind it
            self._pad(start, stop - start)

    def _pad(self, offset: int, size_bytes: int) -> None:
        if size_bytes:
            self._enter(f"__pad{self._pads}", BYTE, (size_bytes,), offset, size_bytes)
            self._pads += 1

    def _enter(
        self, name: str, dtype: str, shape: Sequence[int], offset: int, size_bytes: int
    ) -> None:
        entry = entry_text(name, dtype, shape, offset - self._header_bytes, size_bytes)
        self._entries.append(entry)
        self._entries_bytes += len(entry)

    def seal(self) -> None:
        length = self._header_bytes - _LENGTH_BYTES
        text = _METADATA + "".join(self._entries) + "}"
        header = length.to_bytes(_LENGTH_BYTES, "little") + text.encode("ascii")
        try:
            if os.fstat(self._fd).st_size != self._end:  # what was given back was never written
                os.ftruncate(self._fd, self._end)
            self.write(memoryview(header), 0)
        finally:
            self.close()


def entry_text(name: str, dtype: str, shape: Sequence[int], start: int, size_bytes: int) -> str:
    """What a header says of a tensor whose bytes begin so far behind it."""
    dims = ",".join(map(str, shape))
    return (
        f',{json.dumps(name)}:{{"dtype":"{dtype}","shape":[{dims}],'
        f'"data_offsets":[{start},{start + size_bytes}]}}'
    )


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    """A nearly full disk takes a part of the bytes and raises only at the next call."""
    while data.nbytes:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
