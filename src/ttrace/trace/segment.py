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

from collections.abc import Callable, Sequence
from pathlib import Path

from ttrace.core.record import Location
from ttrace.errors import UsageError
from ttrace.trace.dtypes import BYTE, safetensors_name
from ttrace.trace.segment_file import ALIGNMENT, ENTRY_BYTES, Reserved, Segment

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
        # Told of every file into which nobody writes any more.
        self.on_closed: Callable[[Path], None] = lambda _: None

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
            self.on_closed(self._folder / segment.file_name)
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
            self.on_closed(self._folder / segment.file_name)
