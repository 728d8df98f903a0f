"""Blocks: a logical tensor walked in boxes of bounded size, so that it is never built in memory.

A block spans whole trailing dims, so what a piece contributes to it is one contiguous read per run.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence

import torch

from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record
from ttrace.trace.payload import Span, payload_of
from ttrace.trace.spans import SpanReader

# Chosen: 4 MB of fp32, small beside the interpreter, large beside the cost of a call (about 0.1
# ms).
BLOCK_ELEMENTS = 1 << 20

Index = tuple[int, ...]


def blocks(shape: Sequence[int], budget: int = BLOCK_ELEMENTS) -> Iterator[tuple[Index, Index]]:
    """Boxes (start, stop) in row-major order, each of at most `budget` elements."""
    if math.prod(shape) == 0:
        return
    split = split_dim(shape, budget)
    if split < 0:
        yield (), ()
        return
    step = max(1, budget // math.prod(shape[split + 1 :]))
    trailing = tuple(shape[split + 1 :])
    for leading in itertools.product(*(range(size) for size in shape[:split])):
        for low in range(0, shape[split], step):
            high = min(low + step, shape[split])
            yield (
                (*leading, low, *(0 for _ in trailing)),
                (*(index + 1 for index in leading), high, *trailing),
            )


def split_dim(shape: Sequence[int], budget: int = BLOCK_ELEMENTS) -> int:
    """The first dim whose trailing part fits a block: earlier dims go one index at a time."""
    for dim in range(len(shape)):
        if math.prod(shape[dim + 1 :]) <= budget:
            return dim
    return len(shape) - 1


class BlockReader:
    """Assembles blocks of logical tensors in memory of its own, which the next call reuses."""

    def __init__(self, spans: SpanReader) -> None:
        self._spans = spans
        self._slab = _Scratch()
        self._block = _Scratch()

    def read(
        self, pieces: Sequence[Piece], shape: Sequence[int], start: Index, stop: Index
    ) -> torch.Tensor:
        """The part start:stop of the logical tensor that these pieces make up."""
        size = tuple(high - low for low, high in zip(start, stop, strict=True))
        split = split_dim(shape)
        if len(pieces) == 1 and _is_plain(pieces[0]) and pieces[0].layout.is_full:
            return self._read_slab(pieces[0].records[0], _slices(start, stop), split).reshape(size)
        dtype = common_dtype(pieces)
        block = self._block.take(size, dtype)
        if not all(_is_plain(piece) for piece in pieces):
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
        """Verify the checksums of everything the tensor was read from."""
        for piece in (*tensor.pieces, *tensor.replicas):
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
        payload = payload_of(record)
        trailing = record.shape[split + 1 :]
        first = 0
        for size, part in zip(record.shape[: split + 1], local, strict=False):
            first = first * size + part.start
        leading = [part.stop - part.start for part in local[: split + 1]]
        count = math.prod(leading) * math.prod(trailing)
        room = self._slab.take((count,), payload.read_dtype(record))
        span = Span(record, first * math.prod(trailing), room, self._spans.read)
        return payload.read(span).reshape((*leading, *trailing))


class _Scratch:
    """Memory that grows to the largest request and is then reused."""

    def __init__(self) -> None:
        self._bytes = torch.empty(0, dtype=torch.uint8)

    def take(self, shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
        size_bytes = math.prod(shape) * dtype.itemsize
        if self._bytes.numel() < size_bytes:
            self._bytes = torch.empty(size_bytes, dtype=torch.uint8)
        return self._bytes[:size_bytes].view(dtype).reshape(tuple(shape))


def common_dtype(pieces: Sequence[Piece]) -> torch.dtype:
    """The dtype in which the pieces can be put together; sums are made in at least fp32."""
    dtypes = {payload_of(r).read_dtype(r) for piece in pieces for r in piece.records}
    if len(dtypes) == 1 and all(_is_plain(piece) for piece in pieces):
        return next(iter(dtypes))
    wide = any(dtype == torch.float64 or not dtype.is_floating_point for dtype in dtypes)
    return torch.float64 if wide else torch.float32


def _is_plain(piece: Piece) -> bool:
    return len(piece.records) == 1 and piece.factor == 1.0


def _slices(start: Index, stop: Index) -> list[slice]:
    return [slice(low, high) for low, high in zip(start, stop, strict=True)]
