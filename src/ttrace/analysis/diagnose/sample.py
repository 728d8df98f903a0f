"""Which boxes of a suspect are looked at: all of a small one, a fixed number of a large one.

    [8192, 1024]     32 boxes of 32 rows, one in every 32nd of the rows
    [4096, 65536]    16 boxes of a whole row each
    [2, 1 << 30]     32 boxes of 32 Ki elements, one in every 16th of each row

A sample has a box in every cell of the drawing, a box in every part that a rank holds, and those of
the worst element and the worst row, which the comparison has found. The latter say where an error
is but nothing of how common it is, so they are kept apart.

Enters: a shape, the parts, what the comparison measured. Leaves: boxes. No byte is read here.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ttrace.core.evidence import CELLS
from ttrace.core.layout import Layout
from ttrace.core.statistics import Statistics
from ttrace.trace.blocks import Grid, Index

EXAMINED = 1 << 20  # measured: 25 ms, a sixth of what comparing 100 Mi elements takes
_BOX = 1 << 15  # measured: arrays of float64 stay in a core's L2 cache
_BOXES = 32  # measured: twice as many of half the size take half as long again
_OF_PART = 1 << 12  # chosen: 256 parts are then half of a sample
_FEW_ROWS = 8  # chosen: where so many do not fit, rows are not read whole but in parts

SampledBox = tuple[Index, Index]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """Boxes to look at, and the cells of the drawing, each of which has a part in one of them."""

    typical: tuple[SampledBox, ...]
    worst: tuple[SampledBox, ...] = ()
    cells: tuple[int, int]  # of rows and of columns
    is_part: bool = True  # of the tensor


def sample(
    shape: Sequence[int],
    parts: Sequence[Layout],
    measured: Statistics | None,
    most: int = EXAMINED,
) -> Sample:
    """The whole tensor where it has at most `most` elements."""
    rows, columns = as_matrix(shape)
    if rows * columns <= most:
        grid = Grid(shape, _BOX)
        every = tuple(grid.box(number) for number in range(len(grid)))
        cells = (min(CELLS, rows), min(CELLS, columns))
        return Sample(typical=every, cells=cells, is_part=False)
    are_whole = columns * _FEW_ROWS <= most
    high = min(rows, _BOXES, most // columns if are_whole else _FEW_ROWS)
    wide = 1 if are_whole else _BOXES // high
    grid = Grid(shape, most // (high * wide))
    typical = {grid.number_at(index) for index in _one_in_each(shape, high, wide)}
    worst = {grid.number_at(index) for index in _worst_places(shape, measured)}
    boxes = [grid.box(number) for number in sorted(typical - worst)]
    boxes += _boxes_of_parts(shape, parts, boxes)
    return Sample(
        typical=tuple(boxes),
        worst=tuple(grid.box(number) for number in sorted(worst)),
        cells=(high, min(CELLS, columns) if are_whole else wide),
    )


def as_matrix(shape: Sequence[int]) -> tuple[int, int]:
    """Rows and columns of the drawing: all dims but the last are rows."""
    return math.prod(shape[:-1]), shape[-1] if shape else 1


def _one_in_each(shape: Sequence[int], high: int, wide: int) -> Iterator[Index]:
    """An element anywhere in each of high * wide cells: a fixed distance might hit a pattern."""
    rows, columns = as_matrix(shape)
    dice = random.Random(0)
    for i in range(high):
        for j in range(wide):
            row = dice.choice(_members(i, high, rows))
            column = dice.choice(_members(j, wide, columns))
            yield _unravel(row * columns + column, shape)


def _members(cell: int, cells: int, size: int) -> range:
    """The rows or columns n in this cell: those with n * cells // size == cell."""
    return range(-(-cell * size // cells), -(-(cell + 1) * size // cells))


def _unravel(place: int, shape: Sequence[int]) -> Index:
    index: list[int] = []
    for size in reversed(shape):
        place, here = divmod(place, size)
        index.insert(0, here)
    return tuple(index)


def _worst_places(shape: Sequence[int], measured: Statistics | None) -> Iterator[Index]:
    """The worst element, and the first one of the worst row."""
    if measured is None:
        return
    if measured.worst_element:
        yield measured.worst_element
    for found in measured.slices[:1]:
        fixed = dict(zip(found.dims, found.index, strict=True))
        yield tuple(fixed.get(dim, 0) for dim in range(len(shape)))


def _boxes_of_parts(
    shape: Sequence[int], parts: Sequence[Layout], known: Sequence[SampledBox]
) -> list[SampledBox]:
    """One in the middle of every part that no other box meets."""
    grid = Grid(shape, _OF_PART)
    missed = [
        layout
        for layout in dict.fromkeys(parts)
        if layout.volume and not any(all(layout.meets(*box)) for box in known)
    ]
    numbers = {grid.number_at(_middle(layout)) for layout in missed}
    return [grid.box(number) for number in sorted(numbers)]


def _middle(layout: Layout) -> Index:
    runs = [[run for run in dim if run.start is not None] for dim in layout.runs]
    middles = [dim[len(dim) // 2] for dim in runs]
    return tuple((run.start or 0) + run.length // 2 for run in middles)
