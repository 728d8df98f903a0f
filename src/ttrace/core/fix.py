"""A fix that was tried: what became of root causes and tensors between two results, as types.

    FixVerdict.PARTLY_FIXED     a root cause is gone, another remains
    BlamedBoth                  a place that is blamed before, after or both, with its worst tensor
    TensorBoth                  a tensor before and after

Programs switch on the enums; the words for people are made from them in report/fixes.py.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum

from ttrace.core.blame import Blame
from ttrace.core.ids import TensorId
from ttrace.core.results import Outcome, TensorResult, Verdict

# Chosen: tolerances are measured anew for every result, and differ by less than that.
_CLEARLY = 2.0


class FixVerdict(StrEnum):
    """What a fix did, in one word."""

    FIXED = "fixed"  # not equivalent before, equivalent now
    FIXED_AS_SEEN = "fixed as far as seen"  # the same, without some of the tensors that failed
    PARTLY_FIXED = "partly fixed"  # something is right or clearly nearer, and nothing got wrong
    MIXED = "mixed"  # something got right, something that was right got wrong
    NO_CHANGE = "no change"
    WORSE = "worse"  # something that was right got wrong, or clearly further off
    ACCEPTED = "accepted"  # equivalent now since the accept list allows what failed
    DECIDED = "decided"  # undecided before, and not any more
    UNDECIDED = "undecided"  # the result after it decides nothing
    NOT_COMPARABLE = "not comparable"  # no tensor is in both


class Trend(StrEnum):
    """Of what fails before and after."""

    BETTER = "better"
    SAME = "same"
    WORSE = "worse"


class Sighting(StrEnum):
    """What a result before says of the tensors by which a place is blamed only after."""

    PASSED = "passed"
    FAILED = "failed"  # as well: its error may have stood behind that of another place
    NOT_JUDGED = "not judged"  # the fix uncovered it: it was missing, or undecided
    UNKNOWN = "unknown"  # places were found by another kind of comparison


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """What one result says of a tensor."""

    verdict: Verdict
    ratio: float | None  # error over tolerance
    severity: float  # the same; infinite of a failure that has none

    @classmethod
    def of(cls, tensor: TensorResult) -> Standing:
        return cls(verdict=tensor.verdict, ratio=tensor.ratio, severity=tensor.severity)

    @property
    def passes(self) -> bool:
        return not self.verdict.is_failure and self.verdict not in _OPEN


_OPEN = (Verdict.UNDECIDED, Verdict.EXTRA)


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorBoth:
    """A tensor in both results, or in one of them."""

    id: TensorId
    before: Standing | None
    after: Standing | None

    @property
    def trend(self) -> Trend:
        return _trend(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class BlamedBoth:
    """A place that is blamed, and what the worst tensor of its evidence says."""

    blame: Blame
    before: Standing | None
    after: Standing | None
    sighting: Sighting | None = None  # of a place that is blamed only after

    @property
    def trend(self) -> Trend:
        return _trend(self.before, self.after)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fix:
    """What changed from one result to another; tensors that pass in both are not listed."""

    verdict: FixVerdict
    before: Outcome
    after: Outcome
    shared: int  # tensors that both results have
    gone: tuple[BlamedBoth, ...] = ()
    remaining: tuple[BlamedBoth, ...] = ()
    new: tuple[BlamedBoth, ...] = ()
    fixed: tuple[TensorBoth, ...] = ()  # failed, and pass
    failing: tuple[TensorBoth, ...] = ()  # in both, the worst first
    newly_failing: tuple[TensorBoth, ...] = ()
    undecided: tuple[TensorBoth, ...] = ()  # only now
    accepted: tuple[TensorBoth, ...] = ()  # failed, and are on the accept list
    only_before: tuple[TensorBoth, ...] = ()
    only_after: tuple[TensorBoth, ...] = ()

    @property
    def unseen(self) -> int:
        """How many tensors failed before and are not there to be judged now."""
        standings = [pair.before for pair in self.only_before]
        return sum(each is not None and each.verdict.is_failure for each in standings)


def _trend(before: Standing | None, after: Standing | None) -> Trend:
    if before is None or after is None or before.severity == after.severity:
        return Trend.SAME
    if after.severity * _CLEARLY <= before.severity:
        return Trend.BETTER
    is_worse = math.isinf(after.severity) or after.severity >= before.severity * _CLEARLY
    return Trend.WORSE if is_worse else Trend.SAME
