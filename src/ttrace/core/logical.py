"""A logical tensor as a plan: which pieces of which ranks make it up. Plain data, no bytes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ttrace.core.cover import Box, disjoint_covers, find_gaps
from ttrace.core.layout import Layout
from ttrace.core.record import Record


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
