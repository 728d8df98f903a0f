"""Measuring from fingerprints: the same statistics, estimated from the sums of cells.

    norm        the root of the mean square of all sums of the difference; known to 3% of itself
    gain        from exact squares of both: 2 <e, r> = |c|^2 - |r|^2 - |e|^2; from the sums, in all
                runs, where the candidate's records are terms that only add up to it
    shift       exact
    row, slice  of cells instead of single indices
    element     the cell with the largest error: one element among thousands shows if it is larger
                than the noise of its whole cell

What cannot be said: which element it is, by how many units in the last place, and how many differ.
Where the cells of both runs cannot be brought together, nothing is measured, and that is said. Of
values so large that float32 cannot hold the sums of a cell, as those of a mask, squares alone tell.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np

from ttrace.analysis.compare.measured import Disagreement, Measured
from ttrace.analysis.compare.tokens import token_dims
from ttrace.core.form import unlike
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.statistics import Slice, Statistics
from ttrace.measure.cells import Array, PerDim, energies, signed_dims
from ttrace.trace.sketches import (
    CellsDoNotFit,
    InCells,
    Mask,
    Sketch,
    SketchReader,
    common_sizes,
    touched_cells,
    whole_cells,
)


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


# Two orders of the same sum in float32 differ by a few units in its last place; less is nothing
# that a fingerprint can tell. Measured: up to 1.5 units between a GPU and a CPU.
_SAME = 2.0**-22
# Squares of smaller numbers vanish in float32, in which a GPU adds them.
_SMALLEST_EXACT = 1e-30
_LARGEST_SUM = float(np.finfo(np.float32).max)
_SAME_SQUARES = 1e-9  # chosen: far above the rounding of doubles, below one element of most masks
NOTHING = Statistics(
    count=0,
    error_norm=0.0,
    reference_norm=0.0,
    candidate_norm=0.0,
    dot=0.0,
    max_error=0.0,
    error_sum=0.0,
    nonfinite_reference=0,
    nonfinite_candidate=0,
    unequal=0,
)


class SketchPair:
    """Two sketches of one logical tensor, in cells of one size."""

    def __init__(
        self, expected: Sketch, found: Sketch, shape: PerDim, sizes: PerDim, scale: float = 1.0
    ) -> None:
        self._expected, self._found = expected, found
        self._shape, self._sizes, self._scale = shape, sizes, scale
        self._signed = tuple(range(len(shape), len(shape) + len(signed_dims(sizes))))
        self._reference = expected.sums
        self._candidate = found.sums if scale == 1.0 else found.sums / scale
        self._is_whole = True
        self._bad = [self._nonfinite(sums) for sums in (self._reference, self._candidate)]
        is_bad = any(bad.any() for bad in self._bad)
        self._overflows = is_bad and all(
            not bad.any() or _may_overflow(sketch, sizes)
            for sketch, bad in zip((expected, found), self._bad, strict=True)
        )
        if is_bad:
            self.leave_out(np.asarray(self._bad[0] | self._bad[1]))
        self._is_cut = False  # by who asks

    def leave_out(self, cells: Mask) -> None:
        """Compare nothing of these cells."""
        if cells.any():
            self._is_whole, self._is_cut = False, True
            self._reference, self._candidate = self._reference.copy(), self._candidate.copy()
            self._reference[cells] = 0.0
            self._candidate[cells] = 0.0

    def _nonfinite(self, sums: Array) -> Mask:
        """The cells with an infinity or a NaN; their sum tells whether there are any."""
        with np.errstate(invalid="ignore"):
            total = sums.sum()
        if math.isfinite(total):
            return np.zeros(sums.shape[: len(self._shape)], dtype=bool)
        return np.asarray(~np.isfinite(sums).all(axis=self._signed))

    def leave_out_moved(self, tokens: int) -> int:
        """Leave out tokens that only one of the runs sent to this expert; how many."""
        if not tokens or any(size > 1 for size in self._sizes[:tokens]):
            return 0
        inner = tuple(range(tokens, self._reference.ndim))
        here, there = ((s != 0).any(axis=inner) for s in (self._reference, self._candidate))
        moved = np.asarray(here != there)
        self.leave_out(moved)
        return int(moved.sum())

    def statistics(self) -> Statistics:
        if self._overflows and (squares := self._huge_squares()) is not None:
            return self._by_squares(*squares)
        error = self._candidate - self._reference
        errors, references = self._energy(error), self._energy(self._reference)
        errors, references = self._calibrated(errors, references)
        error_squared = float(errors.sum())
        reference_squared, candidate_squared, error_dot = self._products(error, error_squared)
        is_equal = self._is_same_bits()
        # What a sum is rounded by depends on what it is made of, and that may cancel in one cell.
        size = references + references.mean() if references.size else 0.0
        unequal = 0 if is_equal else int((errors > _SAME**2 * size).sum())
        if is_equal is False:
            unequal = max(1, unequal)
        if not unequal:
            errors, error_squared, error_dot = np.zeros_like(errors), 0.0, 0.0
        return Statistics(
            count=math.prod(self._shape),
            error_norm=math.sqrt(error_squared),
            reference_norm=math.sqrt(reference_squared),
            candidate_norm=math.sqrt(candidate_squared),
            dot=reference_squared + error_dot,
            max_error=math.sqrt(float(errors.max(initial=0.0))),
            peak=self._peak(references),
            error_sum=self._error_sum(error) if unequal else 0.0,
            nonfinite_reference=self._nonfinite_alone(0),
            nonfinite_candidate=self._nonfinite_alone(1),
            unequal=unequal,
            worst_element=self._first_of(errors) if unequal else (),
            slices=self._slices(errors) if unequal else (),
            cells=self._sizes,
        )

    def _huge_squares(self) -> tuple[float, float] | None:
        """Of both, whole; a GPU cannot hold them, nor can bfloat16 be squared in float32."""
        reference, candidate = self._expected.squares, self._found.squares
        if self._is_cut or reference is None or candidate is None:
            return None
        return reference, candidate / self._scale**2

    def _by_squares(self, reference: float, candidate: float) -> Statistics:
        """As if what differs were zero in one of both runs, as elements of a mask are."""
        error = abs(candidate - reference)
        error = error if error > _SAME_SQUARES * max(reference, candidate) else 0.0
        return replace(
            NOTHING,
            count=math.prod(self._shape),
            error_norm=math.sqrt(error),
            reference_norm=math.sqrt(reference),
            candidate_norm=math.sqrt(candidate),
            dot=(reference + candidate - error) / 2,
            max_error=math.sqrt(error),
            peak=self._expected.peak or 0.0,
            unequal=int(error > 0),
            cells=self._sizes,
        )

    def _nonfinite_alone(self, side: int) -> int:
        """Cells of one side; sums that are too large say nothing of values, squares tell of NaN."""
        alone = self._bad[side] & ~self._bad[1 - side]
        both = (self._expected, self._found)
        has_nan_alone = _has_nan(both[side]) and not _has_nan(both[1 - side])
        return max(int(has_nan_alone), 0 if self._overflows else int(alone.sum()))

    def _energy(self, sums: Array) -> Array:
        return energies(sums, len(self._shape))

    def _calibrated(self, errors: Array, references: Array) -> tuple[Array, Array]:
        """Energies by which the reference has its exact norm; then a factor is nothing else, too:

        what cells miss of the reference, they miss of an error that is a multiple of it.
        """
        exact, seen = self._exact_squares(), float(references.sum())
        if exact is None or not seen:
            return errors, references
        return errors * (exact[0] / seen), references * (exact[0] / seen)

    def _exact_squares(self) -> tuple[float, float] | None:
        """Of both, where fingerprints tell them."""
        reference, candidate = self._expected.squares, self._found.squares
        if not self._is_whole or reference is None or candidate is None:
            return None
        candidate /= self._scale**2
        smallest = _SMALLEST_EXACT * math.prod(self._shape)
        return (reference, candidate) if min(reference, candidate) > smallest else None

    def _products(self, error: Array, error_squared: float) -> tuple[float, float, float]:
        """|r|^2, |c|^2 and <e, r>."""
        if (exact := self._exact_squares()) is not None:
            reference, candidate = exact
            return reference, candidate, (candidate - reference - error_squared) / 2
        reference = float(self._energy(self._reference).sum())
        candidate = float(self._energy(self._candidate).sum())
        dot = float((error * self._reference).sum()) * 0.5 ** len(self._signed)
        return reference, candidate, dot

    def _error_sum(self, error: Array) -> float:
        totals = self._expected.total, self._found.total
        if self._is_whole and totals[0] is not None and totals[1] is not None:
            return totals[1] / self._scale - totals[0]
        return 0.0

    def _peak(self, references: Array) -> float:
        if self._expected.peak is not None and math.isfinite(self._expected.peak):
            return self._expected.peak
        return math.sqrt(float(references.max(initial=0.0)))

    def _is_same_bits(self) -> bool | None:
        """Whether both hold the same bits; None where their records cannot tell."""
        if self._scale != 1.0 or not self._expected.is_at(self._found):
            return None
        mine, theirs = self._expected.digests, self._found.digests
        if not mine or not theirs:
            return None
        if any(mine[at][:2] != theirs[at][:2] for at in mine):
            return None  # another dtype, or other cells
        return mine == theirs

    def _first_of(self, errors: Array) -> PerDim:
        worst = np.unravel_index(int(errors.argmax()), errors.shape)
        return tuple(int(at) * size for at, size in zip(worst, self._sizes, strict=True))

    def _slices(self, errors: Array) -> tuple[Slice, ...]:
        """Rows, then every dim by itself, of cells; none where a family has a single member."""
        dims = [dim for dim, count in enumerate(self._shape) if count > 1]
        if len(dims) < 2:
            return ()
        alone = dims if len(dims) > 2 else dims[1:]
        families = [tuple(dims[:-1]), *((dim,) for dim in alone)]
        return tuple(self._worst(errors, family) for family in families)

    def _worst(self, errors: Array, family: PerDim) -> Slice:
        others = tuple(dim for dim in range(errors.ndim) if dim not in family)
        sums = errors.sum(axis=others)
        at = np.unravel_index(int(sums.argmax()), sums.shape)
        return Slice(
            dims=family,
            index=tuple(int(i) * self._sizes[dim] for i, dim in zip(at, family, strict=True)),
            error_norm=math.sqrt(float(sums[at])),
        )


def _may_overflow(sketch: Sketch, sizes: PerDim) -> bool:
    """Whether finite values alone make sums that float32 cannot hold. NaN has no peak."""
    if sketch.peak is None or not math.isfinite(sketch.peak):
        return False
    return not _has_nan(sketch) and sketch.peak * math.prod(sizes) > _LARGEST_SUM


def _has_nan(sketch: Sketch) -> bool:
    return any(math.isnan(found.squares) for found in sketch.prints)
