"""Pairs of logical tensors, read box by box: what a comparison and a closer look both walk over.

Enters: two logical tensors of one shape, and readers of the traces that hold them. Leaves: the same
box of both, in memory that the next box reuses. It must not know what is measured on them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from ttrace.core.logical import LogicalTensor, Piece
from ttrace.trace.blocks import BlockReader, DecoderOf, Index, blocks
from ttrace.trace.payloads import payload_of
from ttrace.trace.spans import SpanReader

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
