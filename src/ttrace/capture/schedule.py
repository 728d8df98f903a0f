"""Which steps of a run are recorded: so many, after those that are let pass, each or every n-th.

Schedule(steps=3, skip=10, every=100)      steps 10, 110 and 210
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """Steps are counted from 0."""

    steps: int = 1
    skip: int = 0
    every: int = 1

    def records(self, number: int) -> bool:
        return number >= self.skip and (number - self.skip) % self.every == 0

    def records_end_of(self, number: int) -> bool:
        """Also of the last step that is let pass: it is where the first recorded one starts."""
        return self.records(number) or number + 1 == self.skip
