"""One suspect in memory: both tensors whole and what every rank holds, for a diagnosis.

Enters: blocks as they are read for the details. Leaves: a Suspect, unless the tensor is too large.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ttrace.core.logical import LogicalTensor, Piece
from ttrace.trace.blocks import Index, Window

# Chosen: a weight of 256 x 512, as tests have. Guesses then take 13 MB (measured), twice that for
# twice the size. Larger suspects are drawn, but it is not said what kind of mistake they look like.
LARGEST = 1 << 17
MOST_PIECES = 256  # chosen: as many as are drawn
_LEFT = 0.1  # chosen: a guess explains 99% of the squared error, or it is none


@dataclass(frozen=True, kw_only=True)
class Suspect:
    """A tensor of both runs in float64, and what a guess may use."""

    expected: Tensor
    found: Tensor
    allowed: float  # norm of the error that rounding explains
    total: Tensor | None = None  # sum over all ranks that hold an element, where they disagree
    holders: int = 1  # how many ranks that are
    before: Tensor | None = None  # the candidate's value before the step
    parts: Mapping[tuple[int, ...], Sequence[Window]] = field(default_factory=dict)  # held by ranks
    cuts: tuple[int, ...] = ()  # for every dim, in how many parts the candidate holds it
    sizes: Mapping[str, int] = field(default_factory=dict)  # of mesh axes, and of microbatches
    axes: tuple[str, ...] = ()  # of the mesh, along which ranks disagree
    added: tuple[str, ...] = ()  # axes along which ranks may hold terms of a sum

    def fits(self, undone: Tensor, expected: Tensor | None = None) -> bool:
        """Whether the tensor is right once a mistake is undone."""
        return self.is_explained(self.left(undone, expected))

    def left(self, undone: Tensor, expected: Tensor | None = None) -> float:
        """The error that is left once a mistake is undone."""
        return float((undone - (self.expected if expected is None else expected)).norm())

    def is_explained(self, left: float) -> bool:
        """Whether the tensor is right with what is left."""
        return is_explained(left, self.error, self.allowed)

    @cached_property
    def error(self) -> float:
        return float((self.found - self.expected).norm())


def is_explained(left: float, error: float, allowed: float) -> bool:
    """Whether a tensor with this error is right with what is left of it."""
    return left <= allowed and left <= _LEFT * error


class Gathering:
    """Both tensors whole, and what every rank holds, where they are small enough to guess about."""

    def __init__(self, reference: LogicalTensor, candidate: LogicalTensor) -> None:
        self._shape = reference.shape
        pieces = (*candidate.pieces, *candidate.replicas)
        self._candidate = candidate
        held = sum(piece.layout.volume for piece in pieces if not piece.recompute)
        holders = held / max(1, reference.volume)
        self._holders = int(holders) if holders == int(holders) else 1
        self._is_small = reference.volume <= LARGEST and len(pieces) <= MOST_PIECES
        size = self._shape if self._is_small else ()
        self._expected, self._found = (torch.zeros(size, dtype=torch.float64) for _ in range(2))
        self._total = torch.zeros(size if self._holders > 1 else (), dtype=torch.float64)
        self._parts: dict[tuple[int, ...], list[Window]] = {}
        self._is_real = True

    def add(self, expected: torch.Tensor, found: torch.Tensor, start: Index, stop: Index) -> None:
        self._is_real = expected.is_floating_point() and found.is_floating_point()
        if self._is_small and self._is_real:
            self._expected[window_of(start, stop)] = expected.double()
            self._found[window_of(start, stop)] = found.double()

    def add_held(
        self,
        piece: Piece,
        values: torch.Tensor,
        start: Index,
        window: Window,
        *,
        is_replica: bool,
    ) -> None:
        """What some ranks hold; `window` is its place in a box that begins at `start`."""
        if not self._is_small or not values.is_floating_point() or piece.recompute:
            return
        moved = tuple(
            slice(first + part.start, first + part.stop)
            for first, part in zip(start, window, strict=True)
        )
        if self._holders > 1:
            self._total[moved] += values.double()
        if not is_replica:
            self._parts.setdefault(piece.ranks, []).append(moved)

    def suspect(
        self,
        allowed: float | None,
        *,
        before: torch.Tensor | None,
        sizes: Mapping[str, int],
        agrees: bool,
        axes: tuple[str, ...],
        added: tuple[str, ...],
    ) -> Suspect | None:
        """Nothing where there is no tolerance, or the tensor is too large or of whole numbers."""
        if allowed is None or not self._is_small or not self._is_real:
            return None
        runs = [piece.layout.runs for piece in self._candidate.pieces]
        return Suspect(
            expected=self._expected,
            found=self._found,
            allowed=allowed,
            total=self._total if self._holders > 1 and not agrees else None,
            holders=self._holders,
            before=before,
            parts=self._parts,
            cuts=tuple(len({held[dim] for held in runs}) for dim in range(len(self._shape))),
            sizes=sizes,
            axes=axes,
            added=added,
        )


def window_of(start: Index, stop: Index) -> Window:
    return tuple(slice(low, high) for low, high in zip(start, stop, strict=True))
