"""Measuring: one pair of logical tensors after the other, block by block.

Enters: pairs of logical tensors and readers of both traces. Leaves: what one pass over each pair
measured. Candidate pieces are walked against slices of the reference, replicas against the piece
they repeat, partial sums are added on the way. Nothing is judged here.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ttrace.analysis.compare.measured import Disagreement, Measured, Unit
from ttrace.analysis.compare.sketched import SketchComparator
from ttrace.analysis.compare.tokens import leave_out_moved, token_dims
from ttrace.core.logical import LogicalTensor, Piece, as_mean, as_terms, unlike
from ttrace.measure.accumulator import Accumulator
from ttrace.trace.pairs import PairReader
from ttrace.trace.sketches import InCells, SketchReader, is_sketched
from ttrace.trace.spans import SpanReader


class Comparator:
    """Measures pairs of logical tensors; its memory does not depend on their size."""

    def __init__(self, reference: SpanReader, candidate: SpanReader) -> None:
        self._pairs = PairReader(reference, candidate)
        self._sketches = SketchComparator(SketchReader(reference), SketchReader(candidate))

    def measure_unit(self, unit: Unit) -> Measured:
        """What one unit of work asks for."""
        measured = self.measure(unit.reference, unit.candidate, unit.scale, cells=unit.cells)
        other = _read_otherwise(unit, measured)
        if other is None:
            return measured
        again = self.measure(unit.reference, other, unit.scale, cells=unit.cells)
        if not again.statistics.error_norm < measured.statistics.error_norm:
            return measured
        return replace(again, as_terms=other == as_terms(unit.candidate))

    def measure(
        self,
        reference: LogicalTensor,
        candidate: LogicalTensor,
        scale: float = 1.0,
        *,
        cells: InCells | None = None,
    ) -> Measured:
        """Statistics of candidate / scale against the reference, and replicas that disagree."""
        if is_sketched(reference, candidate):
            return self._sketches.measure(reference, candidate, scale, cells=cells)
        whole = Accumulator(shape=reference.shape)
        spreads = [(piece, Accumulator()) for piece in unlike(candidate)]
        routed = token_dims(reference)
        moved = 0
        for block in self._pairs.walk(reference, candidate):
            for piece, spread in spreads:
                for window, values in self._pairs.held(piece, candidate, block):
                    spread.update(block.found[window], values)
            moved += leave_out_moved(block.expected, block.found, routed) if routed else 0
            whole.update(block.expected, _divided(block.found, scale), block.start)
        self._pairs.finish(reference, candidate)
        disagreements = [(piece, spread.result()) for piece, spread in spreads]
        return Measured(
            statistics=whole.result(),
            moved=moved,
            disagreements=tuple(
                Disagreement(piece=piece, statistics=result)
                for piece, result in disagreements
                if not result.equal
            ),
        )

    def gain(self, reference: LogicalTensor, piece: Piece) -> float:
        """<piece, reference> / <reference, reference> over the part that the piece holds."""
        if is_sketched(reference, replace(reference, pieces=(piece,))):
            return self._sketches.gain(reference, piece)
        total = Accumulator()
        for expected, values in self._pairs.against(reference, piece):
            total.update(expected, values)
        return total.result().gain


def _read_otherwise(unit: Unit, measured: Measured) -> LogicalTensor | None:
    """Another way to put the candidate together, where nothing says which one is meant.

    A number that every microbatch returns (a loss) is read as a mean, its gradient as a sum of
    shares; if the number is a sum instead, each has the whole gradient.
    """
    candidate = unit.candidate
    if not unit.may_be_terms:
        return None
    if unit.id.kind.is_gradient_of_activation and not unit.reference.shape:
        return as_mean(candidate)
    is_mean = any(piece.factor != 1.0 for piece in candidate.pieces)
    return as_terms(candidate) if measured.disagreements or is_mean else None


def _divided(block: torch.Tensor, scale: float) -> torch.Tensor:
    if scale == 1.0:
        return block
    exact = math.frexp(scale)[0] == 0.5  # a power of two: no rounding in any dtype
    return block.div_(scale) if exact and block.is_floating_point() else block.float() / scale
