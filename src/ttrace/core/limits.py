"""Limits: how large anything may be that is read from outside, all in one place.

    shape: Annotated[tuple[Size, ...], AtMost(DIMS)]      read by door.py

They are chosen above what real runs have, and low enough that nothing within them takes more memory
than `MEMORY_BYTES`, or more than seconds, to be read and refused.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

MEMORY_BYTES = 16 << 30  # that check, show, report and diff keep under, for any input

# Files. Measured: a check takes 13 times the bytes of those lines of journals that differ in more
# than the place of bytes, and 0.1 times those of all; it has 4 traces at most, or few more. A value
# of Python takes up to ten times the bytes of its JSON text.
MANIFEST_BYTES = 64 << 20
LINE_BYTES = 16 << 20  # of a journal
JOURNALS_BYTES = 8 << 30  # of all ranks of a trace
EXAMPLES_BYTES = 256 << 20  # of their lines that differ in more than the place of bytes
RESULT_BYTES = 256 << 20
PLAN_BYTES = 256 << 20
ACCEPT_BYTES = 1 << 20

RANKS = 1 << 20
DIMS = 63  # numpy indexes no more, torch 64
ELEMENTS = 1 << 48  # of one tensor
RUNS = 1 << 20  # of one dim of a layout: every token by itself
MOST_CELLS = 1 << 22  # into which the runs of all layouts cut one logical tensor
ITEMS = 1 << 22  # of any other list
MOST_MICROBATCHES = 1 << 24
NAME_CHARS = 1 << 16
TEXT_CHARS = 1 << 20


@dataclass(frozen=True, slots=True)
class Between:
    """A number from `low` to `high`."""

    low: float
    high: float

    def __str__(self) -> str:
        return f"a number from {self.low:,} to {self.high:,}"


@dataclass(frozen=True, slots=True)
class AtMost:
    """So many characters, items or keys."""

    count: int

    def __str__(self) -> str:
        return f"at most {self.count:,}"


@dataclass(frozen=True, slots=True)
class Matching:
    """Text of this form, a regular expression."""

    form: str

    def __str__(self) -> str:
        return f"text like {self.form}"


MOST = (1 << 63) - 1  # what a file can be long
Size = Annotated[int, Between(0, MOST)]
Count = Annotated[int, Between(1, MOST)]
Rank = Annotated[int, Between(0, RANKS - 1)]
Magnitude = Annotated[float, Between(0, math.inf)]  # NaN is none that is too large
Dim = Annotated[int, Between(0, DIMS - 1)]
Label = Annotated[str, AtMost(NAME_CHARS)]
Digest = Annotated[str, Matching("[0-9a-f]{16}")]
Sizes = Annotated[tuple[Size, ...], AtMost(DIMS)]
