"""Sketches of logical tensors: the sums of their cells, put together from all pieces.

Enters: logical tensors whose records hold fingerprints, or values of which the same fingerprint is
made, and a reader of the trace. Leaves: one array of sums for the whole tensor, in cells as large
as the largest that any of its records, or those of the other run, has. Sums of shards add up, and
so do terms of partial sums: nothing else is done here. `CellsDoNotFit` is raised where a record
sits in the tensor otherwise than at the edges of its cells.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from ttrace.core.alignment import Pair
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Runs
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record
from ttrace.measure.cells import Array, Cells, PerDim, merged, norm_of, signed_dims
from ttrace.measure.fingerprint import Fingerprint, Words, fingerprint_of
from ttrace.trace.fingerprint import FINGERPRINT, is_fingerprint, parameters_of, read_fingerprint
from ttrace.trace.spans import SpanReader

Mask = npt.NDArray[np.bool_]
CellIndex = tuple[slice | npt.NDArray[np.int64], ...]


class CellsDoNotFit(Exception):
    """A record does not begin or end where cells do: its sums say nothing of the logical tensor."""


class RecordDigest(NamedTuple):
    """Of all bits of a record; two can be compared that were made in the same way."""

    dtype: str
    cells: Cells
    value: int


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sketch:
    """The sums of a logical tensor, or of some of its pieces, and what is known exactly.

    `squares` and `peak` are those of all elements where every piece is one record; `total` adds up
    in any case. `digests` are those of the records, by place, where each piece is one record.
    """

    sums: Array  # [*grid, 2, ...]
    total: float | None
    squares: float | None
    peak: float | None
    digests: dict[Layout, RecordDigest] | None
    exponents: Words | None


def is_sketched(*tensors: LogicalTensor) -> bool:
    """Whether any of their records has a fingerprint only."""
    return any(is_fingerprint(record) for tensor in tensors for record in _records(tensor))


def common_sizes(*tensors: LogicalTensor) -> PerDim:
    """The size of cells into which the sums of all records can be merged."""
    sizes = [_cells_of(record).sizes for tensor in tensors for record in _records(tensor)]
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
        id_: InCells(common_sizes(*pair), all(_is_plain(tensor.pieces) for tensor in pair))
        for id_, pair in pairs.items()
        if is_sketched(*pair)
    }


def _is_plain(pieces: Iterable[Piece]) -> bool:
    """Whether every piece is one record as it is."""
    return all(
        len(piece.records) == 1 and piece.factor == 1.0 and not _is_padded(piece.layout)
        for piece in pieces
    )


def _records(tensor: LogicalTensor) -> Iterator[Record]:
    return (r for piece in (*tensor.pieces, *tensor.replicas) for r in piece.records)


def _cells_of(record: Record) -> Cells:
    return parameters_of(record)[0] if is_fingerprint(record) else FINGERPRINT.cells_of(record)


class SketchReader:
    """Puts sketches together from the records of one trace."""

    def __init__(self, spans: SpanReader) -> None:
        self._spans = spans

    def read(self, pieces: Sequence[Piece], shape: Sequence[int], sizes: PerDim) -> Sketch:
        """The pieces of a tensor of this shape, in cells of these sizes."""
        fine: dict[PerDim, Array] = {}
        prints: list[tuple[Piece, Fingerprint, Cells]] = []
        for piece in pieces:
            for record in piece.records:
                found, cells = self._fingerprint(record)
                sums = found.sums if piece.factor == 1.0 else found.sums * piece.factor
                _add(fine, sums, cells, piece.layout)
                prints.append((piece, found, cells))
        whole = np.zeros((*_grid(shape, sizes), *(2 for _ in signed_dims(sizes))))
        for own, sums in fine.items():
            whole += merged(sums, own, sizes)
        return _sketch(whole, prints)

    def _fingerprint(self, record: Record) -> tuple[Fingerprint, Cells]:
        if not is_fingerprint(record):
            cells = FINGERPRINT.cells_of(record)
            return fingerprint_of(self._spans.load(record), cells, with_exponents=True), cells
        return read_fingerprint(record, self._spans.whole(record))


def sketched_distance(reader: SketchReader, before: LogicalTensor, after: LogicalTensor) -> float:
    """The norm of the difference of two tensors of one run; NaN where their cells do not fit."""
    sizes = common_sizes(before, after)
    try:
        old, new = (reader.read(tensor.pieces, tensor.shape, sizes) for tensor in (before, after))
    except CellsDoNotFit:
        return math.nan
    return norm_of(new.sums - old.sums, dims=len(sizes))


def _sketch(sums: Array, prints: Sequence[tuple[Piece, Fingerprint, Cells]]) -> Sketch:
    is_plain = _is_plain(piece for piece, *_ in prints)
    total = sum(piece.factor * found.total for piece, found, _ in prints)
    squares = sum(found.squares for _, found, _ in prints)
    counted = [found.exponents for _, found, _ in prints if found.exponents is not None]
    has_counts = is_plain and len(counted) == len(prints) > 0
    are_padded = any(_is_padded(piece.layout) for piece, *_ in prints)
    digests = {
        piece.layout: RecordDigest(piece.records[0].dtype, cells, found.digest)
        for piece, found, cells in prints
    }
    return Sketch(
        sums=sums,
        total=total if math.isfinite(total) and not are_padded else None,
        squares=squares if is_plain and math.isfinite(squares) else None,
        peak=max((found.peak for _, found, _ in prints), default=0.0) if is_plain else None,
        digests=digests if is_plain else None,
        exponents=np.sum(counted, axis=0) if has_counts else None,
    )


def _is_padded(layout: Layout) -> bool:
    return any(run.start is None for runs in layout.runs for run in runs)


def _grid(shape: Sequence[int], sizes: Sequence[int]) -> PerDim:
    return tuple(-(-length // size) for length, size in zip(shape, sizes, strict=True))


def _add(fine: dict[PerDim, Array], sums: Array, cells: Cells, layout: Layout) -> None:
    """Put the sums of a record where it sits in the logical tensor, in cells of its own size.

    The array is padded at its end to whole cells of any larger size when it is merged.
    """
    here, there = _indices(layout, cells)
    own = fine.get(cells.sizes)
    if own is None:
        grid = _grid(layout.shape, cells.sizes)
        own = fine[cells.sizes] = np.zeros((*grid, *(2 for _ in cells.signed)))
    own[here] += sums[there]


@functools.lru_cache(maxsize=1 << 14)  # chosen: all places of all shapes of a model on many ranks
def _indices(layout: Layout, cells: Cells) -> tuple[CellIndex, CellIndex]:
    """The logical cells that a record has, and the same among its own."""
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
    found = np.zeros(_grid(shape, sizes), dtype=bool)
    for layout in layouts:
        found |= _covered(layout, sizes, at_least_one=False)
    return found


def touched_cells(layouts: Iterable[Layout], shape: Sequence[int], sizes: PerDim) -> Mask:
    """The cells of which one of these layouts holds at least one element."""
    found = np.zeros(_grid(shape, sizes), dtype=bool)
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
