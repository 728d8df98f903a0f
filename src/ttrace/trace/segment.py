"""Segments: append-only files of tensor bytes that become valid `.safetensors` when sealed.

    0        8                  header_bytes          aligned                aligned
    | length | JSON, then spaces | bytes of a tensor | pad | bytes of a tensor | ...

Enters: bytes with a dtype, a shape and a name. Leaves: files seg-00000.safetensors and on, and the
place of every tensor in them. It must not know what a record or a journal is.

The header is written last, so an unsealed file is no safetensors file; its tensors are found by
the journal. safetensors allows no gaps between tensors, so the alignment gaps are tensors
themselves, named `__pad0` and on: foreign readers should skip names that start with `__pad`.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Sequence
from pathlib import Path

import xxhash

from ttrace.core.record import Location
from ttrace.errors import UsageError
from ttrace.trace.dtypes import BYTE, safetensors_name

ALIGNMENT = 64  # a cache line, and the widest vector load
MAX_BYTES = 1 << 30  # chosen: large enough that rolling costs nothing, small enough to copy around
HEADER_BYTES = 1 << 18  # chosen: about 1,200 tensors, as many as fill MAX_BYTES at 1 MB each

# Measured on a busy machine with 2 MiB of L2 cache per core: about 13% less CPU time than hashing a
# whole tensor and then writing it; 64 KiB was slower, 512 KiB no better.
_CHUNK_BYTES = 1 << 18
_LENGTH_BYTES = 8  # safetensors: the header's length, little endian, opens the file
_METADATA = '{"__metadata__":{"format":"pt","made_by":"ttrace"}'
_NAME_CHARS = 512  # chosen; a longer name is cut, the journal has all of it
_ENTRY_BYTES = 1 << 13  # the longest entry and its pad: 512 chars of 12 bytes, 64 dims of 20


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
        if header_bytes < 2 * _ENTRY_BYTES or header_bytes % ALIGNMENT:
            raise UsageError(
                f"a segment header takes a multiple of {ALIGNMENT} bytes and at least "
                f"{2 * _ENTRY_BYTES}, found {header_bytes}"
            )
        self._folder = folder
        self._max_bytes = max_bytes
        self._header_bytes = header_bytes
        self._count = first  # of those that are there already
        self._current: _Segment | None = None
        self._sealed_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Of all files that it wrote."""
        return self._sealed_bytes + (0 if self._current is None else self._current.size_bytes)

    def append(
        self, data: memoryview, *, dtype: str | None, shape: Sequence[int], name: str
    ) -> Location:
        """Write bytes, those of a tensor where a dtype is given; where they are, with a checksum.

        A failed write (a full disk) raises OSError and leaves all earlier tensors as they were.
        """
        if self._current is not None and not self._current.has_room(data.nbytes, self._max_bytes):
            self.seal()
        if self._current is None:
            self._current = _Segment(
                self._folder / f"seg-{self._count:05d}.safetensors", self._header_bytes
            )
            self._count += 1
        stored = safetensors_name(dtype) if dtype else None
        return self._current.append(
            data,
            dtype=stored or BYTE,
            shape=shape if stored else (data.nbytes,),
            name=name[:_NAME_CHARS],
        )

    def seal(self) -> None:
        """Make the open segment a valid safetensors file; the next append starts another."""
        if self._current is not None:
            try:
                self._current.seal()
            finally:
                self.abandon()

    def abandon(self) -> None:
        """Close the open segment as it is; the journal still finds its tensors."""
        if self._current is not None:
            self._current.close()
            self._sealed_bytes += self._current.size_bytes
            self._current = None


class _Segment:
    """One open file. Offsets are from the start of the file, header included."""

    def __init__(self, path: Path, header_bytes: int) -> None:
        self._file_name = path.name
        self._header_bytes = header_bytes
        self._entries: list[str] = []
        self._entries_bytes = _LENGTH_BYTES + len(_METADATA) + len("}")
        self._names: set[str] = set()
        self._pads = 0
        self._end = header_bytes
        self._fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666)
        try:
            # Real bytes, not a hole: the disk may be full by the time of the seal.
            _write_all(self._fd, memoryview(b" " * header_bytes), 0)
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
        return (
            self._entries_bytes + _ENTRY_BYTES <= self._header_bytes
            and self._end + size_bytes <= max_bytes
        )

    def append(self, data: memoryview, *, dtype: str, shape: Sequence[int], name: str) -> Location:
        # Without bytes after it a gap would never be filled.
        gap = -self._end % ALIGNMENT if data.nbytes else 0
        offset = self._end + gap
        try:
            digest = _write_hashed(self._fd, data, offset)
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._fd, self._end)
            raise
        if gap:
            self._enter(f"__pad{self._pads}", BYTE, (gap,), offset - gap, gap)
            self._pads += 1
        while name in self._names:
            name = f"{name}~{len(self._names)}"
        self._names.add(name)
        self._enter(name, dtype, shape, offset, data.nbytes)
        self._end = offset + data.nbytes
        return Location(segment=self._file_name, offset=offset, size_bytes=data.nbytes, xxh3=digest)

    def _enter(
        self, name: str, dtype: str, shape: Sequence[int], offset: int, size_bytes: int
    ) -> None:
        start = offset - self._header_bytes
        dims = ",".join(map(str, shape))
        entry = (
            f',{json.dumps(name)}:{{"dtype":"{dtype}","shape":[{dims}],'
            f'"data_offsets":[{start},{start + size_bytes}]}}'
        )
        self._entries.append(entry)
        self._entries_bytes += len(entry)

    def seal(self) -> None:
        length = self._header_bytes - _LENGTH_BYTES
        text = _METADATA + "".join(self._entries) + "}"
        header = length.to_bytes(_LENGTH_BYTES, "little") + text.encode("ascii")
        try:
            _write_all(self._fd, memoryview(header), 0)
        finally:
            self.close()


def _write_hashed(fd: int, data: memoryview, offset: int) -> str:
    """Write in chunks, and hash each while the cache still holds it; the xxh3 of all of it."""
    hashed = xxhash.xxh3_64()
    start = 0
    while start < data.nbytes:
        # Chunks end where pages of the file end: no page is touched by two writes.
        chunk = data[start : start + _CHUNK_BYTES - (offset + start) % _CHUNK_BYTES]
        _write_all(fd, chunk, offset + start)
        hashed.update(chunk)
        start += chunk.nbytes
    digest: str = hashed.hexdigest()
    return digest


def _write_all(fd: int, data: memoryview, offset: int) -> None:
    """A nearly full disk takes a part of the bytes and raises only at the next call."""
    while data.nbytes:
        written = os.pwrite(fd, data, offset)
        data, offset = data[written:], offset + written
