"""Slices: the error of every row, token, channel, head or expert of a tensor, and the worst ones.

    activations [4, 128, 1024]  batch 0 (4), position 1 (128), channel 2 (1024), token 0,1 (512)
    a weight [4096, 1024]       row 0 (4096), column 1 (1024)

A slice fixes the index of one dim, or of every dim but the last (a row). Enters: squared errors of
the rows and columns of blocks, in row-major order. Leaves: for each family of slices the one with
the largest error. Dims of size 1 do not count; what has fewer than two others has no slices but its
elements.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ttrace.core.statistics import Slice
from ttrace.measure.sums import Squares, Vector

# Chosen: 8 MB of sums. A longer dim is not sliced by itself; its elements are looked at anyway.
_LONGEST = 1 << 20


class SliceSums:
    """Adds up squared errors by slice; its memory does not depend on the number of rows."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._dims = [dim for dim, size in enumerate(shape) if size > 1]
        self._shape = tuple(shape)
        self._worst_row = Slice(dims=tuple(self._dims[:-1]), index=(), error_norm=-1.0)
        self._open: tuple[tuple[int, ...], float] | None = None  # a row that goes on
        # The only leading dim of a matrix is its rows.
        alone = self._dims if len(self._dims) > 2 else self._dims[1:]
        self._sums: dict[int, Vector] = {
            dim: np.zeros(shape[dim]) for dim in alone if shape[dim] <= _LONGEST
        }

    @property
    def wanted(self) -> bool:
        return len(self._dims) > 1 and math.prod(self._shape) > 0

    def squares(self, start: Sequence[int], size: Sequence[int]) -> Squares:
        """Where a kernel is to add the squares of one block."""
        last = self._dims[-1]
        columns = self._sums.get(last)
        return Squares(
            rows=np.zeros(math.prod(size) // size[last]),
            columns=None if columns is None else columns[start[last] : start[last] + size[last]],
        )

    def add(self, squares: Squares, start: Sequence[int], size: Sequence[int]) -> None:
        """The squares of one block, after a kernel has added to them."""
        assert squares.rows is not None
        *leading, last = self._dims
        rows = squares.rows.reshape([size[dim] for dim in leading])
        for axis, dim in enumerate(leading):
            if dim in self._sums:
                others = tuple(other for other in range(rows.ndim) if other != axis)
                self._sums[dim][start[dim] : start[dim] + size[dim]] += rows.sum(axis=others)
        if size[last] == self._shape[last]:
            place = np.unravel_index(int(rows.argmax()), rows.shape)
            index = tuple(start[dim] + int(at) for dim, at in zip(leading, place, strict=True))
            self._offer_row(index, float(rows[place]))
        else:
            self._continue_row(tuple(start[dim] for dim in leading), float(rows.sum()))

    def worst(self) -> tuple[Slice, ...]:
        """The worst row, then the worst slice of every dim."""
        if not self.wanted:
            return ()
        if self._open is not None:
            self._offer_row(*self._open)
        single = [
            Slice(
                dims=(dim,),
                index=(int(sums.argmax()),),
                error_norm=math.sqrt(float(sums.max())),
            )
            for dim, sums in self._sums.items()
        ]
        return (self._worst_row, *single)

    def _continue_row(self, index: tuple[int, ...], squared: float) -> None:
        """A row longer than a block comes in several, one after the other."""
        if self._open is not None and self._open[0] == index:
            squared += self._open[1]
        elif self._open is not None:
            self._offer_row(*self._open)
        self._open = (index, squared)

    def _offer_row(self, index: tuple[int, ...], squared: float) -> None:
        error_norm = math.sqrt(squared)
        if error_norm > self._worst_row.error_norm:
            self._worst_row = Slice(dims=self._worst_row.dims, index=index, error_norm=error_norm)
