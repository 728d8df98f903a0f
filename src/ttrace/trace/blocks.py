"""Blocks: logical tensors walked in boxes of bounded size, so that they are never built in memory.

A block spans whole trailing dims, so what a piece contributes to it is one contiguous read per run.
Pairs of two runs are walked over box by box in the same memory; what is measured on them is not
known here.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch

from ttrace.core.form import unlike
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record
from ttrace.trace.payload import Decoder, Span
from ttrace.trace.payloads import payload_of
from ttrace.trace.spans import SpanReader

# Chosen: 4 MB of fp32, small beside the interpreter, large beside the cost of a call (about 0.1
# ms).
BLOCK_ELEMENTS = 1 << 20

Index = tuple[int, ...]
DecoderOf = Callable[[Record], Decoder]  # who reads a record: for its values, what wrote it


def blocks(shape: Sequence[int], budget: int = BLOCK_ELEMENTS) -> Iterator[tuple[Index, Index]]:
    """Boxes (start, stop) in row-major order, each of at most `budget` elements."""
    grid = Grid(shape, budget)
    return (grid.box(number) for number in range(len(grid)))


class Grid:
    """All boxes of a logical tensor by number, in row-major order."""

    def __init__(self, shape: Sequence[int], budget: int = BLOCK_ELEMENTS) -> None:
        self._shape = tuple(shape)
        self._split = _split_dim(shape, budget)
        trailing = math.prod(self._shape[self._split + 1 :])
        self._step = max(1, budget // max(1, trailing))  # of the dim that is split
        self._parts = -(-self._shape[self._split] // self._step) if self._shape else 1
        self._count = math.prod(self._shape[: max(0, self._split)]) * self._parts

    def __len__(self) -> int:
        return self._count if math.prod(self._shape) else 0

    def box(self, number: int) -> tuple[Index, Index]:
        """Its first element, and the one behind its last."""
        if not self._shape:
            return (), ()
        number, part = divmod(number, self._parts)
        leading: list[int] = []
        for size in reversed(self._shape[: self._split]):
            number, index = divmod(number, size)
            leading.insert(0, index)
        low = part * self._step
        high = min(low + self._step, self._shape[self._split])
        trailing = self._shape[self._split + 1 :]
        start = (*leading, low, *(0 for _ in trailing))
        return start, (*(index + 1 for index in leading), high, *trailing)

    def number_at(self, index: Sequence[int]) -> int:
        """The box that holds this element."""
        number = 0
        for size, place in zip(self._shape[: max(0, self._split)], index, strict=False):
            number = number * size + place
        return number * self._parts + (index[self._split] // self._step if self._shape else 0)


def _split_dim(shape: Sequence[int], budget: int) -> int:
    """The first dim whose trailing part fits a block: earlier dims go one index at a time."""
    for dim in range(len(shape)):
        if math.prod(shape[dim + 1 :]) <= budget:
            return dim
    return len(shape) - 1


class BlockReader:
    """Assembles blocks of logical tensors in memory of its own, which the next call reuses."""

    def __init__(self, spans: SpanReader, decoder_of: DecoderOf = payload_of) -> None:
        self._spans = spans
        self._decoder_of = decoder_of
        self._slab = _Scratch()
        self._block = _Scratch()

    def read(
        self, pieces: Sequence[Piece], shape: Sequence[int], start: Index, stop: Index
    ) -> torch.Tensor:
        """The box start:stop of a Grid, of the logical tensor that these pieces make up."""
        size = tuple(high - low for low, high in zip(start, stop, strict=True))
        split = _last_cut(shape, start, stop)
        if len(pieces) == 1 and _is_plain(pieces[0]) and pieces[0].layout.is_full:
            return self._read_slab(pieces[0].records[0], _slices(start, stop), split).reshape(size)
        dtype = common_dtype(pieces, self._decoder_of)
        block = self._block.take(size, dtype)
        held = sum(piece.layout.volume for piece in pieces)
        if held < math.prod(shape) or not all(_is_plain(piece) for piece in pieces):
            block.zero_()
        for piece in pieces:
            for record in piece.records:
                self._add(record, piece, block, start, stop, split)
        return block

    def read_piece(
        self, piece: Piece, shape: Sequence[int], start: Index, stop: Index
    ) -> Iterator[tuple[tuple[slice, ...], torch.Tensor]]:
        """What one piece alone holds of the block, as (slices inside the block, values)."""
        inside = [place for _, place in piece.layout.pieces(start, stop)]
        if inside:
            block = self.read([piece], shape, start, stop)
            for place in inside:
                yield place, block[place]

    def finish(self, tensor: LogicalTensor) -> None:
        """Verify the checksums of everything the tensor is read from.

        Replicas with the checksum of what they repeat, or of another replica, are not read.
        """
        for piece in (*tensor.pieces, *(first for first, *_ in unlike(tensor))):
            for record in piece.records:
                self._spans.finish(record)

    def _add(
        self,
        record: Record,
        piece: Piece,
        block: torch.Tensor,
        start: Index,
        stop: Index,
        split: int,
    ) -> None:
        meets = piece.layout.meets(start, stop)
        for leading in itertools.product(*meets[: split + 1]):
            slab = self._read_slab(record, [local for local, _ in leading], split)
            for trailing in itertools.product(*meets[split + 1 :]):
                source = slab[(slice(None),) * (split + 1) + tuple(local for local, _ in trailing)]
                target = block[tuple(inside for _, inside in (*leading, *trailing))]
                if _is_plain(piece):
                    target.copy_(source)
                else:
                    target.add_(source.to(block.dtype), alpha=piece.factor)

    def _read_slab(self, record: Record, local: Sequence[slice], split: int) -> torch.Tensor:
        """Local indices of the dims up to `split`, all of the trailing dims: one span."""
        decoder = self._decoder_of(record)
        trailing = record.shape[split + 1 :]
        first = 0
        for size, part in zip(record.shape[: split + 1], local, strict=False):
            first = first * size + part.start
        leading = [part.stop - part.start for part in local[: split + 1]]
        count = math.prod(leading) * math.prod(trailing)
        room = self._slab.take((count,), decoder.read_dtype(record))
        span = Span(record, first * math.prod(trailing), room, self._spans.read)
        return decoder.read(span).reshape((*leading, *trailing))


class _Scratch:
    """Memory that grows to the largest request and is then reused."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        size_bytes = math.prod(shape) * dtype.itemsize
        if self._bytes.numel() < size_bytes:
            self._bytes = torch.empty(size_bytes, dtype=torch.uint8)
        return self._bytes[:size_bytes].view(dtype).reshape(tuple(shape))


def common_dtype(pieces: Sequence[Piece], decoder_of: DecoderOf = payload_of) -> torch.dtype:
    """The dtype in which the pieces can be put together; sums are made in at least fp32."""
    dtypes = {decoder_of(r).read_dtype(r) for piece in pieces for r in piece.records}
    if len(dtypes) == 1 and all(_is_plain(piece) for piece in pieces):
        return next(iter(dtypes))
    wide = any(dtype == torch.float64 or not dtype.is_floating_point for dtype in dtypes)
    return torch.float64 if wide else torch.float32


def _last_cut(shape: Sequence[int], start: Index, stop: Index) -> int:
    """The last dim that a box does not span, the first dim where it is the whole tensor."""
    cut = [dim for dim, size in enumerate(shape) if stop[dim] - start[dim] < size]
    return cut[-1] if cut else min(0, len(shape) - 1)


def _is_plain(piece: Piece) -> bool:
    return len(piece.records) == 1 and piece.factor == 1.0


def _slices(start: Index, stop: Index) -> list[slice]:
    return [slice(low, high) for low, high in zip(start, stop, strict=True)]


Window = tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockPair:
    """One box of the reference and of the candidate, until the next one is read."""

    start: Index
    stop: Index
    expected: torch.Tensor
    found: torch.Tensor


class PairReader:
    """Reads pairs of logical tensors; its memory does not depend on their size."""

    def __init__(
        self, reference: SpanReader, candidate: SpanReader, decoder_of: DecoderOf = payload_of
    ) -> None:
        self._reference = BlockReader(reference, decoder_of)
        self._candidate = BlockReader(candidate, decoder_of)
        self._piece = BlockReader(candidate, decoder_of)

    def walk(
        self,
        reference: LogicalTensor,
        candidate: LogicalTensor,
        boxes: Iterable[tuple[Index, Index]] | None = None,
    ) -> Iterator[BlockPair]:
        """These boxes, or all of them in row-major order."""
        absent = (*reference.absent, *candidate.absent)
        mine, theirs = tuple(reference.pieces), tuple(candidate.pieces)  # made once, read often
        for start, stop in blocks(reference.shape) if boxes is None else boxes:
            expected = self._reference.read(mine, reference.shape, start, stop)
            found = self._candidate.read(theirs, candidate.shape, start, stop)
            for layout in absent:  # padding that only one of the runs has is not compared
                for _, inside in layout.pieces(start, stop):
                    expected[inside] = 0
                    found[inside] = 0
            yield BlockPair(start=start, stop=stop, expected=expected, found=found)

    def held(
        self, piece: Piece, candidate: LogicalTensor, block: BlockPair
    ) -> Iterator[tuple[Window, torch.Tensor]]:
        """What one piece of the candidate holds of a box, as (slices inside the box, values)."""
        return self._piece.read_piece(piece, candidate.shape, block.start, block.stop)

    def against(
        self, reference: LogicalTensor, piece: Piece
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """What one piece of the candidate holds, after the same part of the reference."""
        shape, mine = reference.shape, tuple(reference.pieces)
        for start, stop in blocks(shape):
            expected: torch.Tensor | None = None
            for window, values in self._piece.read_piece(piece, shape, start, stop):
                if expected is None:
                    expected = self._reference.read(mine, shape, start, stop)
                yield expected[window], values

    def finish(self, reference: LogicalTensor, candidate: LogicalTensor) -> None:
        """Verify the checksums of everything that both were read from."""
        self._reference.finish(reference)
        self._candidate.finish(candidate)
