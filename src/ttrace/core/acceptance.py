"""Acceptances: differences that a team has decided to live with.

    Acceptance(id="step*/drop:*", reason="each rank draws its own mask", bound=None)

Values only; analysis/accept.py reads files of them and says what they do to verdicts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from fnmatch import fnmatchcase

from ttrace.core.ids import TensorId
from ttrace.core.limits import Label
from ttrace.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """A pattern of tensor ids, why they may differ, and by how many times their tolerance."""

    id: Label
    reason: Label
    bound: float | None = None  # error over tolerance; none: whatever it is

    def __post_init__(self) -> None:
        if not self.id or not self.reason:
            raise UsageError("an entry has an id and a reason: say why it may differ")
        if self.bound is not None and not 0 < self.bound < math.inf:
            raise UsageError(f"the bound {self.bound} must be above 0 and finite")

    def matches(self, id_: TensorId) -> bool:
        """By the text of an id, as every report shows it; which is a pattern of itself."""
        text = str(id_)
        return text == self.id or fnmatchcase(text, self.id)

    def allows(self, severity: float) -> bool:
        return self.bound is None or severity <= self.bound


@dataclass(frozen=True, slots=True, kw_only=True)
class AcceptedTensors:
    """What one entry did in a comparison: how many it accepted, and how many beyond its bound."""

    entry: Acceptance
    count: int = 0
    beyond: int = 0
