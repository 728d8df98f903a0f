"""Measuring from fingerprints: the same statistics, estimated from the sums of cells.

    norm        the root of the mean square of all sums of the difference; known to 3% of itself
    gain        from exact squares of both: 2 <e, r> = |c|^2 - |r|^2 - |e|^2; from the sums, in all
                runs, where the candidate's records are terms that only add up to it
    shift       exact
    row, slice  of cells instead of single indices
    element     the cell with the largest error: one element among thousands shows if it is larger
                than the noise of its whole cell

What cannot be said: which element it is, by how many units in the last place, and how many differ.
Where the cells of both runs cannot be brought together, nothing is measured, and that is said.
"""

from __future__ import annotations

import math
from dataclasses import replace

from ttrace.analysis.compare.measured import Disagreement, Measured
from ttrace.analysis.compare.sketch_pair import NOTHING, SketchPair
from ttrace.analysis.compare.tokens import token_dims
from ttrace.core.form import unlike
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.statistics import Statistics
from ttrace.measure.cells import PerDim
from ttrace.trace.cell_places import CellsDoNotFit, touched_cells, whole_cells
from ttrace.trace.sketches import InCells, Sketch, SketchReader, common_sizes


class SketchComparator:
    """Measures pairs of logical tensors of which one at least has fingerprints only."""

    def __init__(self, reference: SketchReader, candidate: SketchReader) -> None:
        self._reference = reference
        self._candidate = candidate

    def measure(
        self,
        reference: LogicalTensor,
        candidate: LogicalTensor,
        scale: float = 1.0,
        *,
        cells: InCells | None = None,
    ) -> Measured:
        """Statistics of candidate / scale against the reference, and replicas that disagree.

        What is read is verified; replicas with the checksum of what they repeat, or of another
        replica, are not read.
        """
        sizes = common_sizes(reference, candidate)
        sizes = tuple(map(max, sizes, cells.sizes)) if cells is not None else sizes
        shape = reference.shape
        try:
            expected = self._reference.read(reference.pieces, shape, sizes)
            found = self._candidate.read(candidate.pieces, shape, sizes)
            disagreements = tuple(
                Disagreement.of(piece, statistics)
                for same in unlike(candidate)
                if not (statistics := self._replica(same[0], candidate, found, sizes)).equal
                for piece in same
            )
        except CellsDoNotFit:
            self._reference.verify(reference.pieces)
            self._candidate.verify(candidate.pieces)
            return Measured(statistics=NOTHING, cells_fit=False)
        if cells is not None and not cells.is_exact:
            expected, found = (replace(sketch, squares=None) for sketch in (expected, found))
        absent = (*reference.absent, *candidate.absent)
        left_out = touched_cells(absent, shape, sizes) if absent else None
        pair = SketchPair(expected, found, shape, sizes, scale)
        moved = pair.leave_out_moved(token_dims(reference))
        if left_out is not None:
            pair.leave_out(left_out)
        return Measured(statistics=pair.statistics(), moved=moved, disagreements=disagreements)

    def gain(self, reference: LogicalTensor, piece: Piece) -> float:
        """<piece, reference> / <reference, reference> over the cells that the piece holds."""
        alone = replace(reference, pieces=(piece,), replicas=())
        sizes = common_sizes(reference, alone)
        try:
            expected = self._reference.read(reference.pieces, reference.shape, sizes)
            found = self._candidate.read([piece], reference.shape, sizes)
        except CellsDoNotFit:
            return math.nan
        pair = SketchPair(expected, found, reference.shape, sizes)
        if not piece.layout.is_full:
            pair.leave_out(~whole_cells([piece.layout], reference.shape, sizes))
        return pair.statistics().gain

    def _replica(
        self, piece: Piece, candidate: LogicalTensor, found: Sketch, sizes: PerDim
    ) -> Statistics:
        """A replica against what it repeats: the same bits, or what cells tell of them."""
        shape = candidate.shape
        alone = self._candidate.read([piece], shape, sizes)
        if found.digests and alone.digests:
            same = found.digests.get(piece.layout)
            if same is not None and same == alone.digests[piece.layout]:
                return NOTHING
        pair = SketchPair(found, alone, shape, sizes)
        if not piece.layout.is_full:
            pair.leave_out(~whole_cells([piece.layout], shape, sizes))
        return pair.statistics()
