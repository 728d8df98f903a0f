"""What is measured of a pair of logical tensors, and what is asked for. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.limits import Rank, Size
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.statistics import Statistics
from ttrace.trace.sketches import InCells


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One piece of work: a pair, and by what the candidate is larger. It is plain data.

    `may_be_terms`: replicas that disagree may be terms of a sum instead; the nearer reading counts.
    """

    id: TensorId
    reference: LogicalTensor
    candidate: LogicalTensor
    scale: float = 1.0
    may_be_terms: bool = False
    cells: InCells | None = None  # of fingerprints: as those of another run are compared


@dataclass(frozen=True, slots=True, kw_only=True)
class Disagreement:
    """A replica that is not bitwise what another rank holds, by its place and its ranks."""

    layout: Layout
    ranks: tuple[Rank, ...]
    recompute: bool = False
    statistics: Statistics

    @classmethod
    def of(cls, piece: Piece, statistics: Statistics) -> Disagreement:
        return cls(
            layout=piece.layout,
            ranks=piece.ranks,
            recompute=piece.recompute,
            statistics=statistics,
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """One pair of logical tensors, measured in one pass. It is small and plain, and may travel.

    `moved` tokens went to this expert in one of the runs only; the statistics are of the others.
    """

    statistics: Statistics
    disagreements: tuple[Disagreement, ...] = ()
    moved: Size = 0
    as_terms: bool = False  # the candidate's replicas were taken as terms of a sum
    witnesses: Size = 0  # that one of both was rounded (measure/rounding.py)
    cells_fit: bool = True  # else fingerprints of both cannot be brought together: nothing is known
