"""Coverage: do these layouts make up the whole logical tensor, and where do they fall short?

Enters: the layouts of all pieces. Leaves: disjoint covers (the first should be complete, the others
are replicas) and the gaps of the first as boxes. No tensor is touched.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ttrace.core.layout import Layout, Runs
from ttrace.core.limits import MOST_CELLS
from ttrace.errors import LayoutError

_MOST_GAPS = 4096  # chosen: the first are shown


@dataclass(frozen=True, slots=True)
class Box:
    """A rectangular part of the logical index space."""

    start: tuple[int, ...]
    stop: tuple[int, ...]

    @property
    def volume(self) -> int:
        return math.prod(b - a for a, b in zip(self.start, self.stop, strict=True))

    def __str__(self) -> str:
        ranges = zip(self.start, self.stop, strict=True)
        return "[" + ", ".join(f"{a}:{b}" for a, b in ranges) + "]"


def disjoint_covers(layouts: Sequence[Layout]) -> list[list[int]]:
    """Indices of `layouts` in groups without overlap: each goes to the first with room."""
    return [list(cover) for cover in _covers(tuple(layouts))]


def find_gaps(shape: Sequence[int], layouts: Sequence[Layout]) -> list[Box]:
    """The parts of the logical tensor that no layout holds, the first of very many."""
    return list(_gaps(tuple(shape), tuple(layouts)))


# Chosen: the shapes of a model on its mesh, each of which all of its layers have.
_KNOWN = 1 << 10


@functools.lru_cache(maxsize=_KNOWN)
def _covers(layouts: tuple[Layout, ...]) -> list[list[int]]:
    covers: list[list[int]] = []
    if _only_repeat(layouts):
        times: dict[object, int] = {}
        for index, layout in enumerate(layouts):
            number = times.get(layout.runs, 0) if layout.volume else 0
            times[layout.runs] = number + 1
            covers += [[]] if number == len(covers) else []
            covers[number].append(index)
        return covers
    seen: dict[object, int] = {}
    for index, layout in enumerate(layouts):
        # An identical layout was placed before: every cover up to that one is known to be taken.
        # One that holds nothing takes no room.
        first = seen.get(layout.runs, -1) + 1 if layout.volume else 0
        for number in range(first, len(covers) + 1):
            if number == len(covers):
                covers.append([])
            if not any(layout.overlaps(layouts[other]) for other in covers[number]):
                covers[number].append(index)
                seen[layout.runs] = number
                break
    return covers


def _only_repeat(layouts: tuple[Layout, ...]) -> bool:
    """Whether any two of them are either the same or have nothing in common."""
    distinct = list({layout.runs: layout for layout in layouts}.values())
    if len(distinct) < 2:
        return True
    grid = _Grid(distinct[0].shape, distinct)
    if not distinct[0].shape or grid.cells > MOST_CELLS:
        return False
    taken = np.zeros(grid.counts, dtype=bool)
    for layout in distinct:
        held = grid.held(layout)
        if taken[held].any():
            return False
        taken[held] = True
    return True


@functools.lru_cache(maxsize=_KNOWN)
def _gaps(shape: tuple[int, ...], layouts: tuple[Layout, ...]) -> list[Box]:
    total = math.prod(shape)
    if total == 0:
        return []
    if not layouts:
        return [Box((0,) * len(shape), tuple(shape))]
    if not shape:
        return []
    grid = _Grid(shape, layouts)
    if grid.cells > MOST_CELLS:
        raise LayoutError(f"its pieces cut it into {grid.cells:,} cells, more than {MOST_CELLS:,}")
    covered = np.zeros(grid.counts, dtype=bool)
    for layout in layouts:
        covered[grid.held(layout)] = True
    cuts = grid.cuts
    return _merge_along_last_dim(
        [
            Box(
                tuple(points[i] for points, i in zip(cuts, cell, strict=True)),
                tuple(points[i + 1] for points, i in zip(cuts, cell, strict=True)),
            )
            for cell in np.argwhere(~covered)[:_MOST_GAPS].tolist()
        ]
    )


class _Grid:
    """A logical tensor cut wherever a run of one of its layouts begins or ends."""

    def __init__(self, shape: Sequence[int], layouts: Sequence[Layout]) -> None:
        self.cuts = [
            _cut_points(size, [layout.runs[dim] for layout in layouts])
            for dim, size in enumerate(shape)
        ]
        self.counts = [len(points) - 1 for points in self.cuts]
        self.cells = math.prod(self.counts)
        self._numbers = [{point: i for i, point in enumerate(points)} for points in self.cuts]

    def held(self, layout: Layout) -> tuple[npt.NDArray[np.int64], ...]:
        """The index of all cells that a layout has."""
        along = zip(self._numbers, layout.runs, strict=True)
        return np.ix_(*(_cells(numbers, runs) for numbers, runs in along))


def _cut_points(size: int, all_runs: Sequence[Runs]) -> list[int]:
    points = {0, size}
    for runs in all_runs:
        for run in runs:
            if run.start is not None:
                points |= {run.start, run.start + run.length}
    return sorted(points)


def _cells(index: dict[int, int], runs: Runs) -> list[int]:
    cells: list[int] = []
    for run in runs:
        if run.start is not None:
            cells += range(index[run.start], index[run.start + run.length])
    return cells


def _merge_along_last_dim(boxes: list[Box]) -> list[Box]:
    merged: list[Box] = []
    for box in boxes:
        last = merged[-1] if merged else None
        if (
            last is not None
            and last.start[:-1] == box.start[:-1]
            and last.stop[:-1] == box.stop[:-1]
            and last.stop[-1] == box.start[-1]
        ):
            merged[-1] = Box(last.start, box.stop)
        else:
            merged.append(box)
    return merged
