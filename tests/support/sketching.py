"""The sums of cells by their definition, for tests."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from ttrace.measure.cells import Cells, signs

Numbers = npt.NDArray[np.float64]


def exact_sums(values: Numbers, cells: Cells) -> Numbers:
    """Every sum of every cell, as cells.py says what it is."""
    grid = cells.grid(values.shape)
    padding = [
        (shift, count * size - shift - length)
        for length, size, shift, count in zip(
            values.shape, cells.sizes, cells.shifts, grid, strict=True
        )
    ]
    found = np.pad(values, padding)
    found = found.reshape([n for pair in zip(grid, cells.sizes, strict=True) for n in pair])
    for dim in reversed(range(values.ndim)):
        if cells.sizes[dim] > 1:
            found = np.tensordot(found, signs(cells.sizes[dim]).T, axes=(2 * dim + 1, 0))
        else:
            found = found.squeeze(2 * dim + 1)
    axes = list(range(values.ndim))
    result: Numbers = found.transpose(axes + list(range(found.ndim - 1, values.ndim - 1, -1)))
    return result
