"""A fix in words: what two results say of it, the verdict first.

    PARTLY FIXED: 1 root cause is gone, 1 remains; 120 tensors that failed pass, 56 still fail

Enters: a Fix. Leaves: text, and no decision. At most five of each kind are named.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum

from ttrace.core.fix import BlamedBoth, Fix, FixVerdict, Sighting, TensorBoth, Trend
from ttrace.core.results import Outcome, Verdict
from ttrace.report.numbers import filled, times
from ttrace.report.wording import blamed, phase, with_commas

_SHOWN = 5  # chosen: the first show what the others are

VERDICTS = {
    FixVerdict.FIXED: "FIXED: {said}",
    FixVerdict.FIXED_AS_SEEN: "FIXED AS FAR AS IT IS SEEN: {said}",
    FixVerdict.PARTLY_FIXED: "PARTLY FIXED: {said}",
    FixVerdict.MIXED: "PARTLY FIXED, PARTLY WORSE: {said}",
    FixVerdict.NO_CHANGE: "NO CHANGE: {said}",
    FixVerdict.WORSE: "WORSE: {said}",
    FixVerdict.ACCEPTED: "ACCEPTED, NOT FIXED: {said}",
    FixVerdict.DECIDED: "DECIDED: it was undecided, and is {after} now; {said}",
    FixVerdict.UNDECIDED: "UNDECIDED: the report after the fix decides nothing; {said}",
    FixVerdict.NOT_COMPARABLE: "NOT COMPARABLE: no tensor is in both reports, which are of other "
    "models or of other steps",
}

SIGHTINGS = {
    Sighting.PASSED: "; what speaks against it passed before",
    Sighting.FAILED: "; what speaks against it failed before, too, and another place was blamed",
    Sighting.NOT_JUDGED: "; uncovered: what speaks against it could not be judged before",
    Sighting.UNKNOWN: "",
}


class FixGroup(StrEnum):
    """What is listed, in this order; each is a field of a Fix."""

    GONE = "gone"
    REMAINING = "remaining"
    NEW = "new"
    FIXED = "fixed"
    FAILING = "failing"
    NEWLY_FAILING = "newly_failing"
    UNDECIDED = "undecided"
    ACCEPTED = "accepted"
    ONLY_BEFORE = "only_before"
    ONLY_AFTER = "only_after"


TITLES = {
    FixGroup.GONE: "{count:root cause is/root causes are} gone",
    FixGroup.REMAINING: "{count:root cause remains/root causes remain}",
    FixGroup.NEW: "{count:root cause is/root causes are} new",
    FixGroup.FIXED: "{count:tensor that failed passes/tensors that failed pass}",
    FixGroup.FAILING: "{count:tensor still fails/tensors still fail}{trends}",
    FixGroup.NEWLY_FAILING: "{count:tensor newly fails/tensors newly fail}",
    FixGroup.UNDECIDED: "{count:tensor is/tensors are} undecided now",
    FixGroup.ACCEPTED: "{count:tensor that failed is/tensors that failed are} accepted now",
    FixGroup.ONLY_BEFORE: "{count:tensor is/tensors are} in the report before the fix only{failed}",
    FixGroup.ONLY_AFTER: "{count:tensor is/tensors are} in the report after the fix only",
}

_PLACES = (FixGroup.GONE, FixGroup.REMAINING, FixGroup.NEW)
_BOTH_EQUIVALENT = "both reports are equivalent"
_NOTHING = "no failure before, none now"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One group with its first entries."""

    title: str
    rows: tuple[str, ...]
    more: int  # that are not shown


def fix_headline(fix: Fix) -> str:
    """What the fix did, in one line."""
    places = ", ".join(_title(fix, g) for g in _PLACES if getattr(fix, g.value))
    others = [g for g in FixGroup if g not in _PLACES and getattr(fix, g.value)]
    tensors = ", ".join(_title(fix, group) for group in others)
    said = "; ".join(filter(None, (places, tensors)))
    if not said or (fix.before is fix.after is Outcome.EQUIVALENT and not fix.only_before):
        said = _BOTH_EQUIVALENT if fix.after is Outcome.EQUIVALENT else _NOTHING
    return filled(VERDICTS[fix.verdict], said=said, after=fix.after.value)


def sections(fix: Fix) -> Iterator[Section]:
    """What became of every root cause and of every tensor that fails in one of both results."""
    for group in FixGroup:
        found: Sequence[BlamedBoth | TensorBoth] = getattr(fix, group.value)
        if found:
            yield Section(
                title=_title(fix, group),
                rows=tuple(map(_row, found[:_SHOWN])),
                more=max(0, len(found) - _SHOWN),
            )


def _title(fix: Fix, group: FixGroup) -> str:
    found = getattr(fix, group.value)
    return filled(
        TITLES[group],
        count=len(found),
        trends=_trends(fix.failing),
        failed=f", where {fix.unseen} failed" if fix.unseen else "",
    )


def _trends(failing: Sequence[TensorBoth]) -> str:
    """(3 better, 1 worse); empty where all are as they were."""
    counts = {trend: sum(pair.trend is trend for pair in failing) for trend in Trend}
    said = [f"{counts[t]} {t.value}" for t in (Trend.BETTER, Trend.WORSE) if counts[t]]
    return f" ({', '.join(said)})" if said else ""


def _row(entry: BlamedBoth | TensorBoth) -> str:
    said = _standings(entry)
    if isinstance(entry, TensorBoth):
        return f"{entry.id}: {said}"
    place = with_commas(blamed(entry.blame), phase(entry.blame))
    seen = "" if entry.sighting is None else SIGHTINGS[entry.sighting]
    return f"{place}{': ' if said else ''}{said}{seen}"


def _standings(entry: BlamedBoth | TensorBoth) -> str:
    """193,000x its tolerance before, 0.15x now"""
    said, of_what = [], " its tolerance"
    for standing, when in ((entry.before, "before"), (entry.after, "now")):
        if standing is None:
            continue
        if standing.ratio is None or standing.verdict not in _MEASURED:
            said.append(f"{standing.verdict.value} {when}")  # no ratio says it
        else:
            said.append(f"{times(standing.ratio)}{of_what} {when}")
            of_what = ""
    return ", ".join(said)


_MEASURED = (Verdict.PASS, Verdict.BORDERLINE, Verdict.MISMATCH)
