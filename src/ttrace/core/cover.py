"""Coverage: do these layouts make up the whole logical tensor, and where do they fall short?

Enters: the layouts of all pieces. Leaves: disjoint covers (the first should be complete, the others
are replicas) and the gaps of the first as boxes. No tensor is touched.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

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
    covers: list[list[int]] = []
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


def find_gaps(shape: Sequence[int], layouts: Sequence[Layout]) -> list[Box]:
    """The parts of the logical tensor that no layout holds, the first of very many."""
    total = math.prod(shape)
    if total == 0:
        return []
    if not layouts:
        return [Box((0,) * len(shape), tuple(shape))]
    if not shape:
        return []
    cuts = [
        _cut_points(size, [layout.runs[dim] for layout in layouts])
        for dim, size in enumerate(shape)
    ]
    cells = math.prod(len(points) - 1 for points in cuts)
    if cells > MOST_CELLS:
        raise LayoutError(f"its pieces cut it into {cells:,} cells, more than {MOST_CELLS:,}")
    covered = np.zeros([len(points) - 1 for points in cuts], dtype=bool)
    for layout in layouts:
        held = [_cells(points, runs) for points, runs in zip(cuts, layout.runs, strict=True)]
        covered[np.ix_(*held)] = True
    return _merge_along_last_dim(
        [
            Box(
                tuple(points[i] for points, i in zip(cuts, cell, strict=True)),
                tuple(points[i + 1] for points, i in zip(cuts, cell, strict=True)),
            )
            for cell in np.argwhere(~covered)[:_MOST_GAPS].tolist()
        ]
    )


def _cut_points(size: int, all_runs: Sequence[Runs]) -> list[int]:
    points = {0, size}
    for runs in all_runs:
        for run in runs:
            if run.start is not None:
                points |= {run.start, run.start + run.length}
    return sorted(points)


def _cells(points: list[int], runs: Runs) -> list[int]:
    index = {point: i for i, point in enumerate(points)}
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
