"""Judgements: what one tensor was allowed, and each of its readings against that."""

from __future__ import annotations

from dataclasses import dataclass, field

from ttrace.core.limits import Magnitude, Size
from ttrace.core.plain import INLINE
from ttrace.core.readings import Reading, Statistic


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """How large one reading may be: of a statistic, and of the dims it fixes."""

    statistic: Statistic
    dims: tuple[int, ...]
    allowed: Magnitude


@dataclass(frozen=True, slots=True, kw_only=True)
class Tolerance:
    """How far the candidate may be from the reference, where that comes from, and finer limits."""

    error_norm: Magnitude
    source: str
    noise: Magnitude | None = None  # that was measured, where it was
    limits: tuple[Limit, ...] = ()
    cells: tuple[Size, ...] = ()  # of fingerprints, whose parts the limits are for


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """One reading against what is allowed."""

    reading: Reading = field(metadata=INLINE)
    allowed: Magnitude
    ratio: Magnitude  # above 1 fails
    eps: float | None = None  # in machine epsilons of what the reference has in such a part
