"""Cells: how a tensor is made small so that what is left still adds up over any layout.

A tensor is cut into cells of P neighbouring indices along its dims, P a power of two. A cell of one
dim keeps two sums of its values x, with the signs of a Golay pair:

    A = sum a_j x_j      a = + + + - + + - +     the Rudin-Shapiro signs
    B = sum b_j x_j      b = + + + - - - + -     the same, its second half turned round

A cell of two dims keeps four, one for each pair of signs. What that is good for:

* sums are linear: cells of shards add up to cells of the whole, terms of partial sums too, and the
  cells of a difference are the difference of cells;
* a cell may lie anywhere: its signs depend on the place inside of it alone, so a shard need not
  know where it sits in the logical tensor as long as it begins at the edge of a cell;
* two neighbours merge into one cell of twice the size, exactly: A = A1 + B2, B = A1 - B2. So two
  runs need not choose the same cells;
* |A|^2 + |B|^2 is twice the energy of a constant, of any single element and of any pure wave (that
  is what makes the pair a Golay pair), and on average of everything else: the root of the mean
  square of all sums is the norm of the tensor.

Enters: shapes, layouts and sums of cells. Leaves: sizes of cells, and merged sums. It must not know
devices, files or what is compared.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
PerDim = tuple[int, ...]

LONGEST = 2048  # chosen: of a cell along the last dim; longer ones save nothing more
FEWEST = 512  # chosen: sums that a tensor has at least; the norm of their errors is known to 3%
_MOST_ROWS = 128  # chosen: of a cell along another dim; 4 sums then stand for 262,144 elements
_SHORTEST = 16  # chosen: cells along the last dim are no shorter because of a dim's factors of two
# Chosen: sums take at most this share of the bytes of a large tensor; its journal line takes about
# a tenth of that.
SHARE = 1 / 640


@dataclass(frozen=True, slots=True)
class Cells:
    """The size of a cell along every dim, and where inside of a cell the first index lies."""

    sizes: PerDim
    shifts: PerDim

    def grid(self, shape: Sequence[int]) -> PerDim:
        """How many cells a tensor of this shape has along every dim."""
        return tuple(
            -(-(shift + length) // size)
            for length, size, shift in zip(shape, self.sizes, self.shifts, strict=True)
        )

    @property
    def signed(self) -> PerDim:
        """The dims along which a cell has signs: its sums have an axis of two for each of them."""
        return signed_dims(self.sizes)

    @functools.lru_cache(maxsize=1 << 12)  # noqa: B019  (a handful of sizes, and as many shapes)
    def sums_shape(self, shape: PerDim) -> PerDim:
        """The shape of all sums: the grid, then two for every dim with signs."""
        return (*self.grid(shape), *(2 for _ in self.signed))


class View(NamedTuple):
    """A tensor as [outer, rows, inner, columns]: cells lie along rows and columns."""

    outer: int
    rows: int
    inner: int
    columns: int
    row_size: int
    column_size: int
    row_shift: int
    column_shift: int

    @classmethod
    def of(cls, shape: Sequence[int], cells: Cells) -> View:
        if not shape:
            return cls(1, 1, 1, 1, 1, 1, 0, 0)
        last = len(shape) - 1
        rows = [dim for dim in cells.signed if dim != last]
        row = rows[0] if rows else last
        return cls(
            outer=math.prod(shape[:row]),
            rows=shape[row] if rows else 1,
            inner=math.prod(shape[row + 1 : last]),
            columns=shape[last],
            row_size=cells.sizes[row] if rows else 1,
            column_size=cells.sizes[last],
            row_shift=cells.shifts[row] if rows else 0,
            column_shift=cells.shifts[last],
        )

    @property
    def row_cells(self) -> int:
        return -(-(self.row_shift + self.rows) // self.row_size)

    @property
    def column_cells(self) -> int:
        return -(-(self.column_shift + self.columns) // self.column_size)

    @property
    def cells(self) -> int:
        """How many there are."""
        return self.outer * self.row_cells * self.inner * self.column_cells

    @property
    def sums_of_each(self) -> int:
        return (2 if self.row_size > 1 else 1) * (2 if self.column_size > 1 else 1)


def signed_dims(sizes: Sequence[int]) -> PerDim:
    return tuple(dim for dim, size in enumerate(sizes) if size > 1)


@functools.cache
def signs(size: int) -> npt.NDArray[np.float32]:
    """The Golay pair of this length, a power of two, as [2, size]."""
    place = np.arange(size)
    neighbours = place & (place >> 1)
    odd = np.zeros(size, dtype=np.int64)
    while neighbours.any():
        odd ^= neighbours & 1
        neighbours = neighbours >> 1
    first = (1 - 2 * odd).astype(np.float32)
    second = first.copy()
    second[size // 2 :] *= -1 if size > 1 else 1
    return np.stack([first, second])


def choose_cells(
    shape: Sequence[int],
    itemsize: int,
    *,
    runs: Sequence[Sequence[tuple[int | None, int]]] | None = None,
    kept_dims: Sequence[int] = (),
    fewest: int = FEWEST,
) -> Cells:
    """Cells for a local tensor of this shape: long along the last dim, and along one more.

    `runs` are those of its layout, where it has one: (start in the logical tensor, length), for
    every dim. Without, its first index is taken to be at the edge of a cell. `kept_dims` are not
    put together: samples may lie anywhere in a batch.
    """
    sizes, shifts = [1] * len(shape), [0] * len(shape)
    if not shape:
        return Cells((), ())

    def fit(dim: int, wanted: int) -> None:
        known = None if runs is None else runs[dim]
        sizes[dim], shifts[dim] = _fitting(shape[dim], wanted, known)

    last = len(shape) - 1
    if last not in kept_dims:
        longest = max(1, min(LONGEST, 2 * math.prod(shape) // fewest))
        fit(last, _along(shape[last], longest, is_known=runs is not None))
    others = [dim for dim in range(last) if dim not in kept_dims and shape[dim] > 1]
    if others:
        rows = max(others, key=lambda dim: shape[dim])
        wanted, enough = 1, max(fewest, SHARE / 4 * itemsize * math.prod(shape))
        while wanted < min(_MOST_ROWS, shape[rows]) and _sums(shape, sizes) > enough:
            wanted *= 2
            fit(rows, wanted)
    return Cells(tuple(sizes), tuple(shifts))


def _along(length: int, longest: int, *, is_known: bool) -> int:
    """The longest cell along a dim; its shards begin at edges where they are as long as this."""
    whole = length & -length
    if whole < _SHORTEST or is_known:
        whole = 1 << max(0, length - 1).bit_length()
    return min(1 << (longest.bit_length() - 1), whole)


def _fitting(length: int, wanted: int, runs: Sequence[tuple[int | None, int]] | None) -> PerDim:
    """The largest size up to the wanted one with which no cell holds parts of two runs; its shift.

    Several runs lie in the same cells locally and logically, or else cells are smaller.
    """
    if runs is None or not length:
        return wanted, 0
    if len(runs) == 1:
        start = runs[0][0]
        return wanted, 0 if start is None else start % wanted
    size = wanted
    while size > 1 and not all(_is_at_edges(place, start, size) for place, start in _edges(runs)):
        size //= 2
    return size, (_edges(runs)[0][1] or 0) % size


def _edges(runs: Sequence[tuple[int | None, int]]) -> list[tuple[int, int | None]]:
    """Where every run begins: locally, and in the logical tensor."""
    place, found = 0, []
    for start, length in runs:
        found.append((place, start))
        place += length
    return found


def _is_at_edges(place: int, start: int | None, size: int) -> bool:
    return place % size == 0 and (start is None or start % size == 0)


def _sums(shape: Sequence[int], sizes: Sequence[int]) -> int:
    cells = math.prod(-(-n // size) for n, size in zip(shape, sizes, strict=True))
    return cells * 2 ** len(signed_dims(sizes))


def energies(sums: Array, dims: int) -> Array:
    """The energy of every cell of a tensor of so many dims: the mean square of its sums."""
    # One after the other: numpy takes twenty times as long to add along an axis of two.
    squares = np.square(sums).reshape(*sums.shape[:dims], -1)
    found: Array = squares[..., 0]
    for number in range(1, squares.shape[-1]):
        found = found + squares[..., number]
    return found * 0.5 ** (sums.ndim - dims)


def norm_of(sums: Array, *, dims: int) -> float:
    """The norm of the tensor of which these are the sums."""
    return math.sqrt(float(energies(sums, dims).sum()))


def merged(sums: Array, sizes: Sequence[int], wanted: Sequence[int]) -> Array:
    """Sums of cells of these sizes as those of the wanted, larger ones.

    Axes: one for each dim, then one of two for each dim with signs. Where cells are cut off at the
    end of the tensor, what is beyond it is zero.
    """
    if tuple(sizes) == tuple(wanted):
        return sums
    signed = signed_dims(wanted)
    # With signs in front neighbours lie side by side: numpy is several times as fast then.
    sums = np.moveaxis(sums, range(len(sizes), sums.ndim), range(sums.ndim - len(sizes)))
    sums = _with_all_signs(np.ascontiguousarray(sums), sizes, signed)
    for dim, (size, target) in enumerate(zip(sizes, wanted, strict=True)):
        while size < target:
            sums = _merged_once(sums, signed.index(dim), len(signed) + dim)
            size *= 2
    return np.ascontiguousarray(np.moveaxis(sums, range(len(signed)), range(-len(signed), 0)))


def _with_all_signs(sums: Array, sizes: Sequence[int], signed: PerDim) -> Array:
    """A cell of one element has A = B."""
    for axis, dim in enumerate(signed):
        if sizes[dim] == 1:
            sums = np.repeat(np.expand_dims(sums, axis), 2, axis=axis)
    return sums


def _merged_once(sums: Array, axis: int, dim: int) -> Array:
    """`axis` has the signs of the dim."""
    count, half = sums.shape[dim], sums.shape[dim] // 2
    before, between = (slice(None),) * axis, (slice(None),) * (dim - axis - 1)

    def at(number: int, place: slice | int) -> tuple[slice | int, ...]:
        return (*before, number, *between, place)

    found = np.empty((*sums.shape[:dim], count - half, *sums.shape[dim + 1 :]))
    a, b = sums[at(0, slice(0, 2 * half, 2))], sums[at(1, slice(1, 2 * half, 2))]
    with np.errstate(invalid="ignore"):  # infinities of both signs add up to no number
        np.add(a, b, out=found[at(0, slice(0, half))])
        np.subtract(a, b, out=found[at(1, slice(0, half))])
    if count > 2 * half:  # beyond the end there is nothing to add
        for number in range(2):
            found[at(number, half)] = sums[at(0, count - 1)]
    return found
