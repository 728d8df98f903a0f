"""What is drawn of one suspect: cells of the error, distances in ULP, worst rows.

Enters: boxes of both tensors. Leaves: the drawing, of those boxes alone. Nothing is judged here.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ttrace.analysis.diagnose.sample import as_matrix
from ttrace.core.evidence import ElementError, RowError
from ttrace.core.logical import LogicalTensor
from ttrace.measure.rounding import bits_of, count_magnitudes, count_ulps_between
from ttrace.trace.blocks import Index
from ttrace.trace.dtypes import eps_of

WORST_ROWS = 8  # chosen
WORST_ELEMENTS = 8  # chosen
_WITH_ULP = (2, 4)  # bytes of the floats that training is done in

Matrix = npt.NDArray[np.float64]
_Numbers = npt.NDArray[np.int64]


class Picture:
    """Adds up what is drawn of one tensor, seen as a matrix, from boxes of it."""

    def __init__(self, shape: Sequence[int], cells: tuple[int, int]) -> None:
        self._dims = len(shape)
        self._shape = tuple(shape) or (1,)
        self._rows, self._columns = as_matrix(self._shape)
        self._squares = np.zeros(cells)
        self._counts = np.zeros(cells)
        self._ulp: list[int] | None = []
        self._worst: dict[int, tuple[float, float]] = {}
        self._reference_squared = 0.0
        self._elements: list[tuple[float, int, int, float, float]] = []

    @property
    def examined(self) -> int:
        """How many elements were looked at."""
        return int(self._counts.sum())

    @property
    def reference_rms(self) -> float:
        return math.sqrt(self._reference_squared / max(1, self.examined))

    def add(self, expected: torch.Tensor, found: torch.Tensor, start: Index) -> None:
        first_row = int(np.ravel_multi_index(start[:-1], self._shape[:-1])) if start[:-1] else 0
        width = expected.shape[-1] if expected.dim() else 1
        left, right = _matrix(expected, width), _matrix(found, width)
        with np.errstate(invalid="ignore"):  # infinities of a mask
            squares, reference = np.square(right - left), np.square(left).sum(axis=1)
        errors = squares.sum(axis=1)
        self._add_elements(left, right, squares, first_row, start[-1] if start else 0)
        # One NaN or Inf anywhere makes these sums non-finite, so that clean boxes are not searched.
        is_clean = math.isfinite(float(errors.sum() + reference.sum()))
        if not is_clean:
            finite = np.isfinite(left) & np.isfinite(right)
            squares = np.where(finite, squares, 0.0)
            errors, reference = squares.sum(axis=1), np.square(left).sum(axis=1, where=finite)
        self._reference_squared += float(reference.sum())
        self._add_cells(squares, first_row, start[-1] if start else 0)
        self._add_rows(errors, reference, first_row)
        self._add_ulp(_ulp_counts(expected, found, is_clean=is_clean))

    def _add_cells(self, squares: Matrix, first_row: int, first_column: int) -> None:
        high, wide = squares.shape
        rows, tops, heights = _cells(first_row, high, self._squares.shape[0], self._rows)
        columns, lefts, widths = _cells(first_column, wide, self._squares.shape[1], self._columns)
        sums = np.add.reduceat(np.add.reduceat(squares, lefts, axis=1), tops, axis=0)
        self._squares[rows, columns] += sums
        self._counts[rows, columns] += heights[:, None] * widths

    def _add_rows(self, errors: Matrix, reference: Matrix, first: int) -> None:
        count = min(WORST_ROWS, len(errors))
        for index in np.argpartition(errors, -count)[-count:].tolist():
            # A row longer than a box comes in parts.
            before = self._worst.get(first + index, (0.0, 0.0))
            norms = before[0] + float(errors[index]), before[1] + float(reference[index])
            self._worst[first + index] = norms
        kept = sorted(self._worst.items(), key=lambda item: -item[1][0])[:WORST_ROWS]
        self._worst = {row: norms for row, norms in kept if norms[0] > 0}

    def _add_elements(
        self, left: Matrix, right: Matrix, squares: Matrix, first_row: int, first_column: int
    ) -> None:
        """What is not finite counts as the worst."""
        sizes = np.nan_to_num(squares, nan=np.inf).ravel()
        count = min(WORST_ELEMENTS, sizes.size)
        for place in np.argpartition(sizes, -count)[-count:].tolist():
            row, column = divmod(place, squares.shape[1])
            values = float(left[row, column]), float(right[row, column])
            if sizes[place] > 0:
                place_in_all = first_row + row, first_column + column
                self._elements.append((float(sizes[place]), *place_in_all, *values))
        self._elements = sorted(self._elements, key=lambda e: (-e[0], e[1:3]))[:WORST_ELEMENTS]

    def _add_ulp(self, counts: Sequence[int] | None) -> None:
        if counts is None or self._ulp is None:
            self._ulp = None
            return
        self._ulp += [0] * (len(counts) - len(self._ulp))
        for number, count in enumerate(counts):
            self._ulp[number] += count

    def tiles(self) -> tuple[tuple[float, ...], ...]:
        cells = np.sqrt(self._squares / np.maximum(self._counts, 1))
        # Two digits are more than a colour shows.
        return tuple(tuple(float(f"{value:.2g}") for value in row) for row in cells.tolist())

    def ulp(self) -> tuple[int, ...]:
        return tuple(self._ulp or ())

    def worst_elements(self, candidate: LogicalTensor) -> tuple[ElementError, ...]:
        return tuple(
            ElementError(
                index=(index := self._index(row, column)),
                reference=reference,
                candidate=found,
                ranks=_holders(candidate, index),
            )
            for _, row, column, reference, found in self._elements
        )

    def _index(self, row: int, column: int) -> tuple[int, ...]:
        leading = np.unravel_index(row, self._shape[:-1]) if len(self._shape) > 1 else ()
        return (*(int(i) for i in leading), column)[: self._dims]

    def worst_rows(self, candidate: LogicalTensor) -> tuple[RowError, ...]:
        found = []
        for row, (error, reference) in self._worst.items():
            index = tuple(int(i) for i in np.unravel_index(row, self._shape[:-1] or (1,)))
            index = index if len(self._shape) > 1 else ()
            found.append(
                RowError(
                    index=index,
                    error_norm=math.sqrt(error),
                    reference_norm=math.sqrt(reference),
                    ranks=_holders(candidate, index),
                )
            )
        return tuple(found)


def _matrix(block: torch.Tensor, width: int) -> Matrix:
    real = block.abs() if block.is_complex() else block
    return real.double().reshape(-1, width).numpy()


@functools.lru_cache(maxsize=4)  # whole rows have the same columns in every box
def _cells(first: int, count: int, cells: int, size: int) -> tuple[slice, _Numbers, _Numbers]:
    """The cells that these rows or columns are in; the first one in each, and how many are."""
    low, high = first * cells // size, (first + count - 1) * cells // size
    # The first row of cell n is the smallest with row * cells >= n * size.
    begins = np.maximum(-(-np.arange(low, high + 1) * size // cells), first) - first
    return slice(low, high + 1), begins, np.diff(begins, append=count)


def _ulp_counts(expected: torch.Tensor, found: torch.Tensor, *, is_clean: bool) -> list[int] | None:
    """In units of the coarser of both; None where that is no float of training."""
    if not (expected.is_floating_point() and found.is_floating_point()):
        return None
    coarse = max(expected.dtype, found.dtype, key=eps_of)
    if coarse.itemsize not in _WITH_ULP:
        return None
    left, right = expected.to(coarse).reshape(-1), found.to(coarse).reshape(-1)
    a, b = bits_of(left), bits_of(right)
    if not is_clean or expected.dtype != found.dtype:
        finite = (left.isfinite() & right.isfinite()).numpy()
        a, b = a[finite], b[finite]
    return count_magnitudes(count_ulps_between(a, b))


def _holders(tensor: LogicalTensor, index: Sequence[int]) -> tuple[int, ...]:
    """The ranks that hold a part of this row."""
    ranks: set[int] = set()
    for piece in (*tensor.pieces, *tensor.replicas):
        runs = piece.layout.runs[: len(index)]
        inside = all(
            any(
                run.start is not None and run.start <= i < run.start + run.length
                for run in dim_runs
            )
            for i, dim_runs in zip(index, runs, strict=True)
        )
        if inside:
            ranks.update(piece.ranks)
    return tuple(sorted(ranks))
