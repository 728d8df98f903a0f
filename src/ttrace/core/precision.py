"""Precision: in which dtypes the values of one tensor were made, whatever they are stored in."""

from __future__ import annotations

from dataclasses import dataclass

from ttrace.core.formats import Format


@dataclass(frozen=True, slots=True, kw_only=True)
class Precision:
    """The coarsest format that holds all values of each run, where these are not the same.

    `is_of_own_terms`: the reference is as coarse, and what is finer are the candidate's own terms.
    """

    reference: Format
    candidate: Format
    is_of_own_terms: bool = False

    @property
    def is_lower(self) -> bool:
        """Whether it is the candidate whose values are coarser."""
        return self.candidate.mantissa_bits < self.reference.mantissa_bits

    @property
    def coarser(self) -> Format:
        return self.candidate if self.is_lower else self.reference

    @property
    def apart(self) -> int:
        """How many bits of mantissa only one of them has."""
        return abs(self.candidate.mantissa_bits - self.reference.mantissa_bits)
