"""Sketches of logical tensors: the sums of their cells, put together from all pieces.

Enters: logical tensors whose records hold fingerprints, or values of which the same fingerprint is
made, and a reader of the trace. Leaves: one array of sums for the whole tensor, in cells as large
as the largest that any of its records, or those of the other run, has. Sums of shards add up, and
so do terms of partial sums: nothing else is done here. How that is done is found out once for all
tensors of a form. `CellsDoNotFit` is raised where a record sits in the tensor otherwise than at the
edges of its cells.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ttrace.core.form import AlikePieces, PiecesForm
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Runs
from ttrace.core.logical import LogicalTensor, Pair, Piece
from ttrace.core.record import Record
from ttrace.measure.cells import Array, Cells, PerDim, merged, norm_of, signed_dims
from ttrace.measure.fingerprint import Fingerprint, Words, fingerprint_of
from ttrace.trace.fingerprint import FINGERPRINT, is_fingerprint, parameters_of
from ttrace.trace.spans import SpanReader

Mask = npt.NDArray[np.bool_]
CellIndex = tuple[slice | npt.NDArray[np.int64], ...]


class CellsDoNotFit(Exception):
    """A record does not begin or end where cells do: its sums say nothing of the logical tensor."""


def grid_of(shape: Sequence[int], sizes: Sequence[int]) -> PerDim:
    """How many cells a logical tensor has along every dim."""
    return tuple(-(-length // size) for length, size in zip(shape, sizes, strict=True))


def cell_indices(layout: Layout, cells: Cells) -> tuple[CellIndex, CellIndex]:
    """The logical cells that a record has, and the same among its own; CellsDoNotFit."""
    places = [
        _places(runs, size, shift)
        for runs, size, shift in zip(layout.runs, cells.sizes, cells.shifts, strict=True)
    ]
    here = [at[at >= 0] for at in places]
    there = [np.flatnonzero(at >= 0) for at in places]
    return _index(here), _index(there)


def _index(along: Sequence[npt.NDArray[np.int64]]) -> CellIndex:
    """Neighbours as slices, which numpy reaches many times faster."""
    if all(len(at) and at[-1] - at[0] == len(at) - 1 and (np.diff(at) > 0).all() for at in along):
        return tuple(slice(int(at[0]), int(at[-1]) + 1) for at in along)
    return np.ix_(*along)


def _places(runs: Runs, size: int, shift: int) -> npt.NDArray[np.int64]:
    """The logical cell of every local one along a dim; -1 for those of padding."""
    length = sum(run.length for run in runs)
    found = np.full(-(-(shift + length) // size), -1)
    low = 0
    for run in runs:
        high = low + run.length
        is_cut = (low > 0 and (low + shift) % size) or (high < length and (high + shift) % size)
        if is_cut or (run.start is not None and (run.start - low - shift) % size):
            raise CellsDoNotFit
        if run.start is not None and run.length:
            cells = np.arange((low + shift) // size, (high - 1 + shift) // size + 1)
            found[cells] = cells + (run.start - low - shift) // size
        low = high
    return found


def whole_cells(layouts: Iterable[Layout], shape: Sequence[int], sizes: PerDim) -> Mask:
    """The cells of which one of these layouts holds every element that there is."""
    found = np.zeros(grid_of(shape, sizes), dtype=bool)
    for layout in layouts:
        found |= _covered(layout, sizes, at_least_one=False)
    return found


def touched_cells(layouts: Iterable[Layout], shape: Sequence[int], sizes: PerDim) -> Mask:
    """The cells of which one of these layouts holds at least one element."""
    found = np.zeros(grid_of(shape, sizes), dtype=bool)
    for layout in layouts:
        found |= _covered(layout, sizes, at_least_one=True)
    return found


def _covered(layout: Layout, sizes: PerDim, *, at_least_one: bool) -> Mask:
    along = []
    for length, runs, size in zip(layout.shape, layout.runs, sizes, strict=True):
        edges = np.arange(-(-length // size) + 1) * size
        edges[-1] = length
        held = np.zeros(len(edges) - 1, dtype=np.int64)
        for start, stop in ((r.start, r.start + r.length) for r in runs if r.start is not None):
            held += np.clip(np.minimum(edges[1:], stop) - np.maximum(edges[:-1], start), 0, None)
        along.append(held > 0 if at_least_one else held == np.diff(edges))
    mask = np.ones((), dtype=bool)
    for one in along:
        mask = np.logical_and.outer(mask, one)
    return mask


_FORMS_KEPT = 1 << 12  # chosen: a step of a large model on many ranks has some hundreds


class RecordDigest(NamedTuple):
    """Of all bits of a record; two can be compared that were made in the same way."""

    dtype: str
    cells: Cells
    value: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketch:
    """The sums of a logical tensor, or of some of its pieces, and what is known exactly.

    `squares` and `peak` are those of all elements where every piece is one record; `total` adds up
    in any case. `prints` are those of all records of the pieces, which have this form; None where
    it is of no records.
    """

    sums: Array  # [*grid, 2, ...]
    total: float | None
    squares: float | None
    peak: float | None
    form: PiecesForm | None = None
    prints: Sequence[Fingerprint] = ()

    @property
    def exponents(self) -> Words | None:
        """How many elements have which magnitude, where every record counts them."""
        counted = [found.exponents for found in self.prints if found.exponents is not None]
        if self.form is None or not _is_plain(self.form) or len(counted) < len(self.prints):
            return None
        return np.sum(counted, axis=0) if counted else None

    @property
    def digests(self) -> dict[Layout, RecordDigest] | None:
        """Those of the records, by place, where each piece is one record."""
        if self.form is None or not _is_plain(self.form):
            return None
        return {
            piece.layout: RecordDigest(piece.records[0].dtype, part.cells, found.digest)
            for piece, part, found in zip(
                self.form.example, _parts(self.form), self.prints, strict=True
            )
        }

    def is_at(self, other: Sketch) -> bool:
        """Whether the records of both sit at the same places."""
        if self.form is None or other.form is None:
            return False
        return _layouts(self.form) == _layouts(other.form)


def is_sketched(*tensors: LogicalTensor) -> bool:
    """Whether any of their records has a fingerprint only."""
    return any(_has_fingerprint(form) for form in _forms(*tensors))


def common_sizes(*tensors: LogicalTensor) -> PerDim:
    """The size of cells into which the sums of all records can be merged."""
    sizes = [_largest_cells(form) for form in _forms(*tensors)]
    return tuple(max(along) for along in zip(*sizes, strict=True)) if sizes[0] else ()


class InCells(NamedTuple):
    """How fingerprints of a tensor are compared, in all runs alike.

    A run whose records are terms of sums does not have the exact squares of its tensor: what is
    estimated instead has more noise, and so must that have by which it is judged.
    """

    sizes: PerDim
    is_exact: bool


def cells_of(pairs: Mapping[TensorId, Pair]) -> dict[TensorId, InCells]:
    """The cells in which the fingerprints of every pair that has some are compared."""
    return {
        id_: InCells(
            common_sizes(*pair),
            all(_is_plain(AlikePieces.of(tensor.pieces).form) for tensor in pair),
        )
        for id_, pair in pairs.items()
        if is_sketched(*pair)
    }


class SketchReader:
    """Puts sketches together from the records of one trace."""

    def __init__(self, spans: SpanReader) -> None:
        self._spans = spans

    def read(self, pieces: Sequence[Piece], shape: Sequence[int], sizes: PerDim) -> Sketch:
        """The pieces of a tensor of this shape, in cells of these sizes."""
        alike = AlikePieces.of(pieces)
        parts = _parts(alike.form)
        prints = [self._fingerprint(*found) for found in zip(alike.records, parts, strict=True)]
        fine: dict[PerDim, Array] = {}  # the array is padded at its end when it is merged
        for part, found in zip(parts, prints, strict=True):
            own = fine.get(part.cells.sizes)
            if own is None:
                own = fine[part.cells.sizes] = np.zeros(part.whole_shape)
            sums = found.sums if part.factor == 1.0 else found.sums * part.factor
            own[part.here] += sums[part.there]
        coarse = [merged(sums, own, sizes) for own, sums in fine.items()]
        if not coarse:
            coarse = [np.zeros((*grid_of(shape, sizes), *(2 for _ in signed_dims(sizes))))]
        return _sketch(functools.reduce(np.add, coarse), alike.form, prints)

    def verify(self, pieces: Sequence[Piece]) -> None:
        """Raise CorruptTrace where bytes of these pieces are not those that were written."""
        for record in AlikePieces.of(pieces).records:
            self._spans.finish(record)

    def _fingerprint(self, record: Record, part: _Part) -> Fingerprint:
        if not part.is_stored:
            return fingerprint_of(self._spans.load(record), part.cells, with_exponents=True)
        return Fingerprint.from_bytes(
            self._spans.whole(record), part.sums_shape, has_exponents=part.has_exponents
        )


def sketched_distance(reader: SketchReader, before: LogicalTensor, after: LogicalTensor) -> float:
    """The norm of the difference of two tensors of one run; NaN where their cells do not fit."""
    sizes = common_sizes(before, after)
    try:
        old, new = (reader.read(tensor.pieces, tensor.shape, sizes) for tensor in (before, after))
    except CellsDoNotFit:
        return math.nan
    return norm_of(new.sums - old.sums, dims=len(sizes))


def _sketch(sums: Array, form: PiecesForm, prints: Sequence[Fingerprint]) -> Sketch:
    is_plain, parts = _is_plain(form), _parts(form)
    total = sum(part.factor * found.total for part, found in zip(parts, prints, strict=True))
    squares = sum(found.squares for found in prints)
    return Sketch(
        sums=sums,
        total=total if math.isfinite(total) and not _is_padded(form) else None,
        squares=squares if is_plain and math.isfinite(squares) else None,
        peak=max((found.peak for found in prints), default=0.0) if is_plain else None,
        form=form,
        prints=prints,
    )


class _Part(NamedTuple):
    """How the sums of one record are read, and where they belong in the logical tensor."""

    cells: Cells
    is_stored: bool
    has_exponents: bool
    sums_shape: PerDim
    whole_shape: PerDim  # of the sums of the logical tensor, in cells of this size
    here: CellIndex
    there: CellIndex
    factor: float


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _parts(form: PiecesForm) -> tuple[_Part, ...]:
    """Of every record; CellsDoNotFit."""
    return tuple(_part(record, piece) for piece in form.example for record in piece.records)


def _part(record: Record, piece: Piece) -> _Part:
    cells, has_exponents = _cells_of(record), False
    if is_fingerprint(record):
        cells, has_exponents = parameters_of(record)
    here, there = cell_indices(piece.layout, cells)
    return _Part(
        cells=cells,
        is_stored=is_fingerprint(record),
        has_exponents=has_exponents,
        sums_shape=cells.sums_shape(record.shape),
        whole_shape=(*grid_of(piece.layout.shape, cells.sizes), *(2 for _ in cells.signed)),
        here=here,
        there=there,
        factor=piece.factor,
    )


def _forms(*tensors: LogicalTensor) -> list[PiecesForm]:
    """Of all that have pieces."""
    sides = (side for tensor in tensors for side in (tensor.pieces, tensor.replicas))
    return [AlikePieces.of(side).form for side in sides if side]


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _has_fingerprint(form: PiecesForm) -> bool:
    return any(is_fingerprint(record) for piece in form.example for record in piece.records)


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _largest_cells(form: PiecesForm) -> PerDim:
    sizes = [_cells_of(record).sizes for piece in form.example for record in piece.records]
    return tuple(max(along) for along in zip(*sizes, strict=True))


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _is_plain(form: PiecesForm) -> bool:
    """Whether every piece is one record as it is."""
    is_one = all(len(piece.records) == 1 and piece.factor == 1.0 for piece in form.example)
    return is_one and not _is_padded(form)


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _is_padded(form: PiecesForm) -> bool:
    layouts = (piece.layout for piece in form.example)
    return any(run.start is None for layout in layouts for runs in layout.runs for run in runs)


@functools.lru_cache(maxsize=_FORMS_KEPT)
def _layouts(form: PiecesForm) -> frozenset[Layout]:
    return frozenset(piece.layout for piece in form.example)


def _cells_of(record: Record) -> Cells:
    return parameters_of(record)[0] if is_fingerprint(record) else FINGERPRINT.stored(record).cells
