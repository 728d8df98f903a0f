"""What is known of tensors, and what rules say of them. Values only.

    Accusation(id, MISMATCH, Weight.WRONG, finding=FACTOR)      its values are too far away
    Accusation(id, CONFLICT, Weight.REPLICAS)                   replicas disagree, which weighs more
    Excuse(id, HARMLESS, over={CONFLICT})                       and is taken back: nobody uses them

Of several accusations of one tensor the heaviest stands, whoever made them first (reduce.py). An
excuse takes back what stands, where it is one of the verdicts that it is about.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from enum import IntEnum

from ttrace.analysis.compare import Measured
from ttrace.core.finding import Finding, Specifics, Topic
from ttrace.core.ids import TensorId
from ttrace.core.logical import Alignment
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.statistics import Judgement, Statistics, Tolerance


class Weight(IntEnum):
    """How much an accusation counts beside others of the same tensor."""

    PASS = 0  # no further from the reference than rounding explains
    ROUNDED = 5  # the same, and replicas differ by rounding
    HIDDEN = 10  # nothing that values tell: it stands where they are right
    OPEN = 20  # nothing can be said
    WRONG = 30  # values are too far away
    LOST_BITS = 40  # and all of it is rounding to a coarser format
    UNKNOWN_SPLIT = 45  # of a parameter that nobody says how it is cut
    REPLICAS = 50
    INFINITE = 60
    MOVED = 70  # tokens that a router sent elsewhere
    NOT_BY_ALL = 80  # a step of the optimizer that not all made


@dataclass(frozen=True, slots=True, kw_only=True)
class Accusation:
    """What one rule says of one tensor, as if no other rule were there; a pass is one, too."""

    id: TensorId
    verdict: Verdict
    weight: Weight
    finding: Finding | None = None
    specifics: Specifics | None = None
    ranks: tuple[int, ...] = ()  # where the evidence lies, when it is not everywhere
    evidence: tuple[Judgement, ...] = ()  # beside what was measured of it
    ratio: float | None = None  # error over tolerance, where no judgement tells


@dataclass(frozen=True, slots=True, kw_only=True)
class Excuse:
    """Why what stands against a tensor does not count."""

    id: TensorId
    verdict: Verdict  # instead
    over: AbstractSet[Verdict]  # of which accusations
    finding: Finding | None = None
    most: float = math.inf  # the largest error over tolerance that is excused
    topic: Topic | None = None  # of the note that says so


@dataclass(frozen=True, slots=True, kw_only=True)
class Exhibit:
    """What is known of a tensor before anybody says what it means."""

    alignment: Alignment
    order: int
    measured: Measured | None = None  # None where there is no pair
    tolerance: Tolerance | None = None
    judgements: tuple[Judgement, ...] = ()
    error_eps: float | None = None
    moved: int = 0  # tokens that a router sent elsewhere
    allowed_moves: float = 0.0  # as many as noise explains, and had moved before

    @property
    def id(self) -> TensorId:
        return self.alignment.id

    @property
    def statistics(self) -> Statistics | None:
        return None if self.measured is None else self.measured.statistics

    @property
    def is_wrong(self) -> bool:
        """Whether a judgement exceeds its limit."""
        return any(not judgement.ratio <= 1 for judgement in self.judgements)


FAILURES = frozenset(verdict for verdict in Verdict if verdict.is_failure)
Standing = Mapping[TensorId, TensorResult]  # what stands against each tensor, or that nothing does
