"""Quantisation that a run undid, by the module in which it stood. Values only."""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.core.limits import Label, Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Undone:
    """`changed`: operators that got the values before the cast; `left`: those that could not."""

    module: Label
    changed: Size = 0
    left: tuple[Label, ...] = ()  # why, each reason once
