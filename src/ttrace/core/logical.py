"""Logical tensors as plans: which pieces of which ranks make one up, and whether all is there.

    disjoint covers     the first should be complete, the others are replicas
    gaps                what the first lacks, as boxes
    Alignment           one logical tensor as both runs hold it

Plain data: no tensor is touched, no bytes are read, and nothing is judged.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Runs
from ttrace.core.limits import MOST_CELLS
from ttrace.core.record import Record
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """`factor` times the sum of these records, at this place of the logical tensor.

    Most pieces are one record. Partial sums over a mesh axis, and values that every microbatch
    contributes to (a loss, the gradient of a position embedding), are several. A factor of 0 stands
    for zeros that nobody recorded.
    """

    layout: Layout
    records: tuple[Record, ...]
    factor: float = 1.0

    @property
    def ranks(self) -> tuple[int, ...]:
        return tuple(sorted({record.rank for record in self.records}))

    @property
    def recompute(self) -> bool:
        return self.records[0].recompute


@dataclass(frozen=True, slots=True, kw_only=True)
class LogicalTensor:
    """Pieces without overlap that should make up the whole, their replicas, and what is missing.

    `absent` parts are not missing: padding of samples that this run pads to less.
    """

    shape: tuple[int, ...]
    pieces: Sequence[Piece]
    replicas: Sequence[Piece] = ()
    gaps: tuple[Box, ...] = ()
    notes: tuple[str, ...] = ()
    absent: tuple[Layout, ...] = ()

    @property
    def dtype(self) -> str:
        return self.pieces[0].records[0].dtype

    @property
    def volume(self) -> int:
        return math.prod(self.shape)


def as_terms(tensor: LogicalTensor) -> LogicalTensor | None:
    """Replicas, and terms of a mean, taken as terms of one sum, where no layout vouches for them.

    A plain local gradient may be either: frameworks that split the sequence by hand sum it later.
    """
    pieces = [*tensor.pieces, *tensor.replicas]
    if any(record.layout is not None for piece in pieces for record in piece.records):
        return None
    sums: dict[Layout, list[Piece]] = {}
    for piece in pieces:
        sums.setdefault(piece.layout, []).append(piece)
    terms = tuple(
        Piece(layout=layout, records=tuple(r for piece in found for r in piece.records))
        for layout, found in sums.items()
    )
    return replace(tensor, pieces=terms, replicas=())


def as_mean(tensor: LogicalTensor) -> LogicalTensor:
    """Sums of several records taken as their means."""
    pieces = tuple(replace(p, factor=p.factor / len(p.records)) for p in tensor.pieces)
    return replace(tensor, pieces=pieces)


def assemble(
    shape: Sequence[int],
    pieces: Sequence[Piece],
    notes: Sequence[str] = (),
    *,
    absent: tuple[Layout, ...] = (),
) -> LogicalTensor:
    """Sort pieces into one cover and replicas of it; originals come before recomputed values."""
    ordered = sorted(pieces, key=lambda piece: (piece.recompute, piece.ranks))
    covers = disjoint_covers([piece.layout for piece in ordered])
    first = tuple(ordered[index] for index in covers[0]) if covers else ()
    return LogicalTensor(
        shape=tuple(shape),
        pieces=first,
        replicas=tuple(ordered[index] for cover in covers[1:] for index in cover),
        gaps=tuple(find_gaps(shape, [*(piece.layout for piece in first), *absent])),
        notes=tuple(notes),
        absent=absent,
    )


Pair = tuple[LogicalTensor, LogicalTensor]  # reference, candidate


@dataclass(frozen=True, slots=True, kw_only=True)
class Alignment:
    """One id on both sides; a side that cannot be put together says why in its problem."""

    id: TensorId
    reference: LogicalTensor | None
    candidate: LogicalTensor | None
    reference_problem: str = ""
    candidate_problem: str = ""
    # The side that lacks this id stored it under another one, because the tensor was the same
    # object.
    stored_elsewhere: bool = False
    names_rows: bool = False  # numbers of rows, which name the same rows in both runs
    uncertain: bool = False  # nothing says where the candidate's pieces belong

    @property
    def pair(self) -> Pair | None:
        """Both sides, when they can be measured against each other."""
        reference, candidate = self.reference, self.candidate
        if reference is None or candidate is None or reference.shape != candidate.shape:
            return None
        return None if reference.gaps or candidate.gaps else (reference, candidate)

    @property
    def whole_reference(self) -> LogicalTensor | None:
        """The reference's side, when nothing of it is missing."""
        whole = self.reference is not None and self.reference.pieces and not self.reference.gaps
        return self.reference if whole else None

    @property
    def is_kept_together(self) -> bool:
        """Whether one run has its bytes, the other only those of a tensor of which it is a use."""
        return self.stored_elsewhere and (self.reference is None) != (self.candidate is None)

    @property
    def is_judged(self) -> bool:
        """Whether a verdict is due: not where the same tensor has another name, nor where only one
        of two frameworks keeps gradients in a place of their own before they are reduced.
        """
        lacks = self.reference is None or self.candidate is None
        waits = self.id.kind is Kind.ACCUMULATED_GRAD and not self.candidate_problem
        return not self.stored_elsewhere and not (lacks and waits)
