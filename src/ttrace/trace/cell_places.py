"""Where the cells of a record lie among those of the logical tensor.

Enters: layouts and sizes of cells. Leaves: indices and masks of logical cells. `CellsDoNotFit` is
raised where a record sits in the tensor otherwise than at the edges of its cells.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
import numpy.typing as npt

from ttrace.core.layout import Layout, Runs
from ttrace.measure.cells import Cells, PerDim

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
