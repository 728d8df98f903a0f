"""What high precision would change: of the gap between two runs, how much each group carries.

A group are modules of the candidate; a run in which they quantise nothing lies nearer to the
reference by what their quantisation does, or does not.

    gradient closed    1 - (distance of the group's run / distance of the candidate) squared,
                       since independent errors add up in squares
    loss closed        1 - |gap of the group's run| / |gap of the candidate|

Gradients decide. A loss is one number, to which errors of either sign add up: where groups move it
by more than its gap is, the gap is what was left by chance, and tells nothing of who made it.
Values only: who says it is in report.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

_MOST = 0.5  # of a gap, chosen: who closes more than half of it carries it
FEWEST_EPS = 4.0  # chosen: sums of losses in another order differ by that much
_CANCELS = 0.5  # chosen: of what independent effects of these sizes would add up to


class Answer(StrEnum):
    """Who carries the distance between the gradients."""

    ONE = "one"  # group alone closes most of it
    SEVERAL = "several"  # all groups together do, and none of them alone
    ELSEWHERE = "elsewhere"  # most of it stays with all of them in high precision
    NO_GAP = "no gap"


class LossGap(StrEnum):
    """What the gap of the loss tells."""

    CLEAR = "clear"
    ROUNDING = "rounding"  # of the loss itself explains it
    CANCELS = "cancels"  # groups move the loss by more, in both directions


@dataclass(frozen=True, slots=True, kw_only=True)
class RunReading:
    """One run beside the reference, at its last recorded step."""

    loss: float
    loss_gap: float  # its loss less the reference's
    gradient_distance: float  # norm of the difference of all gradients, before clipping
    grad_norm: float | None = None  # None where gradients are not clipped


@dataclass(frozen=True, slots=True, kw_only=True)
class PreciseGroup:
    """Modules that quantised nothing in one run, and what came of it."""

    name: str
    modules: tuple[str, ...]
    changed: int  # operators that got values in place of codes, on all ranks
    left: tuple[str, ...] = ()  # why others could not
    reading: RunReading


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The answer; groups, of which there is one at least, begin with the one that carries most."""

    patterns: tuple[str, ...]
    reference_loss: float
    reference_grad_norm: float | None
    gradient_norm: float  # of all gradients of the reference
    loss_dtype: str
    loss_eps: float
    candidate: RunReading
    together: PreciseGroup
    groups: tuple[PreciseGroup, ...]

    @property
    def gap_eps(self) -> float:
        """The gap of the loss in units of its rounding."""
        size = abs(self.reference_loss) * self.loss_eps
        return abs(self.candidate.loss_gap) / size if size else math.inf

    @property
    def loss_gap(self) -> LossGap:
        if self.gap_eps < FEWEST_EPS:
            return LossGap.ROUNDING
        gap = self.candidate.loss_gap
        effects = math.hypot(*(gap - group.reading.loss_gap for group in self.groups))
        return LossGap.CANCELS if abs(gap) < _CANCELS * effects else LossGap.CLEAR

    @property
    def answer(self) -> Answer:
        least = FEWEST_EPS * self.loss_eps * self.gradient_norm
        if self.loss_gap is LossGap.ROUNDING and self.candidate.gradient_distance <= least:
            return Answer.NO_GAP
        if self.gradient_closed(self.groups[0]) > _MOST:
            return Answer.ONE
        is_here = self.gradient_closed(self.together) > _MOST
        return Answer.SEVERAL if is_here else Answer.ELSEWHERE

    @property
    def loss_carrier(self) -> PreciseGroup | None:
        """The group that closes most of the loss's gap; None where none does, or it says little."""
        first = max(self.groups, key=self.loss_closed)
        is_told = self.loss_gap is LossGap.CLEAR and self.loss_closed(first) > _MOST
        return first if is_told else None

    def loss_closed(self, group: PreciseGroup) -> float:
        """1 is all of it; below 0 the run is further away than the candidate is."""
        gap = abs(self.candidate.loss_gap)
        return 1 - abs(group.reading.loss_gap) / gap if gap else 0.0

    def gradient_closed(self, group: PreciseGroup) -> float:
        distance = self.candidate.gradient_distance
        return 1 - (group.reading.gradient_distance / distance) ** 2 if distance else 0.0
