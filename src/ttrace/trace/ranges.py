"""Bytes of segments behind a URL: few large ranges instead of many small reads.

    a large read     is one range, of just these bytes
    small reads      come from aligned blocks that are kept; the block behind is fetched meanwhile

The records of a tensor are read rank by rank, so that every file of a trace is read in small pieces
at the same time. All files share the memory for blocks: the more there are, the smaller are they.
Where one rank is read after the other, the same blocks of those that follow are fetched at once.
"""

from __future__ import annotations

import functools
from collections import OrderedDict
from concurrent.futures import Future
from typing import NamedTuple

from ttrace.core.record import Location, Record
from ttrace.trace.files import AHEAD, FETCHING, RemoteFiles
from ttrace.trace.segment_bytes import segment_name, segment_size
from ttrace.trace.store import RANGE_BYTES, Url

_KEPT_BYTES = 256 << 20  # chosen: the readers of a check, 4 or 5, take about a gigabyte
# Chosen: such a range takes a few times as long as an empty one, 20 ms or more, and no longer.
_LEAST_BLOCK_BYTES = 64 << 10


class _Block(NamedTuple):
    """A part of a file."""

    name: str
    number: int


class Ranges:
    """Of a trace behind a URL, which is listed when the first bytes are read."""

    def __init__(self, root: Url) -> None:
        self._root = root
        self._blocks: OrderedDict[_Block, Future[bytes]] = OrderedDict()
        self._last: _Block | None = None  # that was read
        self._names: dict[tuple[int, str], str] = {}  # of files that were found to be there

    def some(self, record: Record, location: Location) -> bytes:
        name, start = self._name(record, location), location.offset
        number, offset = divmod(start, self._block_bytes)
        if offset + location.size_bytes <= self._block_bytes:
            return self._block(name, number)[offset : offset + location.size_bytes]
        data = bytearray(location.size_bytes)
        count = self.fill(record, location, 0, memoryview(data))
        return bytes(memoryview(data)[:count])

    def fill(self, record: Record, location: Location, start: int, buffer: memoryview) -> int:
        name, position = self._name(record, location), location.offset + start
        number, offset = divmod(position, self._block_bytes)
        size_bytes = min(buffer.nbytes, RANGE_BYTES)
        if size_bytes >= self._block_bytes:
            data = self._range(name, position, position + size_bytes)
        else:
            data = self._block(name, number)[offset : offset + size_bytes]
        buffer[: len(data)] = data
        return len(data)

    def close(self) -> None:
        for future in self._blocks.values():
            future.cancel()
        self._blocks.clear()

    @functools.cached_property
    def _files(self) -> RemoteFiles:
        return RemoteFiles(self._root)

    @functools.cached_property
    def _block_bytes(self) -> int:
        share = _KEPT_BYTES // (2 * max(1, len(self._files.segments())))
        return min(RANGE_BYTES, max(_LEAST_BLOCK_BYTES, 1 << share.bit_length() - 1))

    @functools.cached_property
    def _most_blocks(self) -> int:
        return _KEPT_BYTES // self._block_bytes

    def _name(self, record: Record, location: Location) -> str:
        key = (record.rank, location.segment)
        if key not in self._names:
            segment_size(self._files, record)  # CorruptTrace where it is missing
            self._names[key] = segment_name(self._root, record)
        return self._names[key]

    @functools.cached_property
    def _order(self) -> list[str]:
        """The first segments of all ranks, then their second ones, and so on."""
        return sorted(self._files.segments(), key=lambda name: name.partition("/")[::-1])

    @functools.cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: number for number, name in enumerate(self._order)}

    def _block(self, name: str, number: int) -> bytes:
        block = _Block(name, number)
        if block not in self._blocks:
            self._ask(block)
            here = self._numbers[name]
            if here and self._last == _Block(self._order[here - 1], number):
                for other in self._order[here + 1 : here + 1 + AHEAD]:
                    self._ask_ahead(_Block(other, number))
        self._last = block
        data = self._ask(block).result()
        self._ask_ahead(_Block(name, number + 1))
        return data

    def _ask_ahead(self, block: _Block) -> None:
        if block.number * self._block_bytes < self._files.size(block.name, holds="more"):
            self._ask(block)

    def _ask(self, block: _Block) -> Future[bytes]:
        found = self._blocks.get(block)
        if found is None or (found.done() and found.exception() is not None):
            start = block.number * self._block_bytes
            found = FETCHING.submit(self._range, block.name, start, start + self._block_bytes)
            self._blocks[block] = found
            if len(self._blocks) > self._most_blocks:
                self._blocks.popitem(last=False)[1].cancel()
        self._blocks.move_to_end(block)
        return found

    def _range(self, name: str, start: int, stop: int) -> bytes:
        stop = min(stop, self._files.size(name, holds="bytes"))
        return (self._root / name).read_range(start, stop) if start < stop else b""
