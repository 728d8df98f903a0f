"""Which ranks hold the wrong cells of suspects that have fingerprints only.

Enters: pairs of logical tensors, the tolerances of their wholes, and readers of both runs. Leaves:
the ranks whose own cells are wrong by more than their share; none where cells are made of terms of
several ranks, or lie on several ranks, or where all ranks are wrong. Nothing is judged again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from ttrace.core.alignment import Pair
from ttrace.core.form import unlike
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.results import TensorResult
from ttrace.measure.cells import Array, energies
from ttrace.trace.cell_places import CellsDoNotFit, whole_cells
from ttrace.trace.sketches import SketchReader, common_sizes, is_sketched
from ttrace.trace.spans import SpanReader


def wrong_by_cells(
    spans: tuple[SpanReader, SpanReader],
    suspects: Sequence[TensorResult],
    pairs: Mapping[TensorId, Pair],
    scale_of: Callable[[TensorId], float],
) -> dict[TensorId, tuple[int, ...]]:
    """The ranks of every suspect that are wrong where others are right."""
    reference, candidate = map(SketchReader, spans)
    found = {}
    for result in suspects:
        expected, actual = pairs[result.id]
        if result.tolerance is None or not is_sketched(expected, actual):
            continue
        sizes = common_sizes(expected, actual)
        try:
            sums = reference.read(expected.pieces, expected.shape, sizes).sums
            others = candidate.read(actual.pieces, actual.shape, sizes).sums
        except CellsDoNotFit:
            continue
        with np.errstate(invalid="ignore"):
            errors = energies(others / scale_of(result.id) - sums, len(sizes))
        found[result.id] = _wrong_ranks(errors, sizes, actual, result.tolerance.error_norm)
    return found


def _wrong_ranks(
    errors: Array, sizes: Sequence[int], candidate: LogicalTensor, allowed: float
) -> tuple[int, ...]:
    if any(len(piece.records) > 1 for piece in candidate.pieces):
        return ()
    wrong, every = set(), set()
    for piece in candidate.pieces:
        held = whole_cells([piece.layout], candidate.shape, tuple(sizes))
        if held.any():
            share = allowed * math.sqrt(piece.layout.volume / candidate.volume)
            every.add(piece.layout)
            wrong |= {piece.layout} if math.sqrt(float(errors[held].sum())) > share else set()
    if wrong == every:
        return ()
    apart = {rank for same in unlike(candidate) for piece in same for rank in piece.ranks}
    same = (piece for piece in candidate.replicas if not apart.intersection(piece.ranks))
    pieces = [*candidate.pieces, *same]
    return tuple(sorted({r for piece in pieces if piece.layout in wrong for r in piece.ranks}))
