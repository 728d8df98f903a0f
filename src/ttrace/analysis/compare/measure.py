"""Measuring: one pair of logical tensors after the other, block by block.

Enters: pairs of logical tensors and readers of both traces. Leaves: what one pass over each pair
measured. Candidate pieces are walked against slices of the reference, replicas against the piece
they repeat, partial sums are added on the way. Nothing is judged here.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch

from ttrace.analysis.compare.grain import between
from ttrace.analysis.compare.measured import Disagreement, Measured, Unit
from ttrace.analysis.compare.sketched import SketchComparator
from ttrace.analysis.compare.tokens import leave_out_moved, token_dims
from ttrace.core.form import records_of, unlike
from ttrace.core.formats import Precision
from ttrace.core.logical import LogicalTensor, Piece, as_mean, as_terms
from ttrace.core.statistics import Statistics
from ttrace.measure.accumulator import Accumulator
from ttrace.measure.rounding import Witnesses
from ttrace.trace.blocks import PairReader
from ttrace.trace.quantised import is_quantised, kept_records
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
        spreads = [(same, Accumulator()) for same in unlike(candidate)]
        routed = token_dims(reference)
        moved = 0
        for block in self._pairs.walk(reference, candidate):
            for (first, *_), spread in spreads:
                for window, values in self._pairs.held(first, candidate, block):
                    spread.update(block.found[window], values)
            moved += leave_out_moved(block.expected, block.found, routed) if routed else 0
            whole.update(block.expected, _divided(block.found, scale), block.start)
        statistics = _with_known_grains(whole.result(), reference, candidate, scale)
        witnesses = self._witnesses(reference, candidate, between(statistics))
        self._pairs.finish(reference, candidate)
        disagreements = [(same, spread.result()) for same, spread in spreads]
        return Measured(
            statistics=statistics,
            witnesses=witnesses,
            moved=moved,
            disagreements=tuple(
                Disagreement.of(piece, result)
                for same, result in disagreements
                if not result.equal
                for piece in same
            ),
        )

    def _witnesses(
        self, reference: LogicalTensor, candidate: LogicalTensor, precision: Precision | None
    ) -> int:
        """Read again, as far as needed, where grains differ: seldom, as correct ones agree."""
        if precision is None:
            return 0
        witnesses = Witnesses(precision.coarser.mantissa_bits)
        for block in self._pairs.walk(reference, candidate):
            pair = block.expected, block.found
            witnesses.add(*(pair[::-1] if precision.is_lower else pair))
            if witnesses.are_enough:
                break
        return witnesses.count

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


def _with_known_grains(
    found: Statistics, reference: LogicalTensor, candidate: LogicalTensor, scale: float
) -> Statistics:
    """Without those of values that were not measured as they were stored.

    Where the candidate alone keeps codes, its module may be given what the other quantises itself.
    """
    is_exact = all(
        record.payload is None or is_quantised(record)
        for record in records_of(reference, candidate)
    )
    only_here = bool(kept_records(candidate)) and not kept_records(reference)
    is_told = math.frexp(scale)[0] == 0.5 and is_exact and not only_here
    return found if is_told else replace(found, reference_grain=None, candidate_grain=None)


def _divided(block: torch.Tensor, scale: float) -> torch.Tensor:
    if scale == 1.0:
        return block
    exact = math.frexp(scale)[0] == 0.5  # a power of two: no rounding in any dtype
    return block.div_(scale) if exact and block.is_floating_point() else block.float() / scale
