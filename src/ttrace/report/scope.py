"""Scope: of which parts of a step a verdict speaks, and why one that fails nowhere is left open.

    in_parts    EQUIVALENT in forward and backward: ...
    unseen      no update was recorded
    judged      judged: forward, backward, reduction (62 of 62), update (62 of 62)

Enters: a CheckResult. Leaves: text, and no decision: those are properties of the result.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ttrace.core.coverage import StepPart
from ttrace.core.results import CheckResult, Outcome, Verdict
from ttrace.report.caveats import CAVEATS, LOST, NOT_RECORDED, PARTS, Caveat
from ttrace.report.numbers import filled, times


def in_parts(result: CheckResult) -> str:
    """The parts of which a verdict speaks; empty where it is all of them."""
    whole = [PARTS[found.part] for found in result.covered if found.is_whole]
    if len(whole) == len(StepPart):
        return ""
    return CAVEATS[Caveat.IN_PARTS].format(parts=_listed(whole))


def unseen(result: CheckResult) -> Iterator[str]:
    """What a verdict does not speak of."""
    was_judged = True
    for found in result.covered:
        if not found.judged:
            if was_judged:  # otherwise it follows from the one before
                yield NOT_RECORDED[found.part]
        elif not found.is_whole:
            yield filled(
                CAVEATS[Caveat.PART_OF_IT],
                part=PARTS[found.part],
                judged=found.judged,
                expected=found.expected,
            )
        was_judged = found.judged > 0
    if alone := result.coverage.candidate_only:
        yield filled(CAVEATS[Caveat.CANDIDATE_ONLY], count=len(alone))


def lost(result: CheckResult) -> str:
    """Why nothing is decided, though nothing differs."""
    extra = {StepPart.shown_by(r.id.kind) for r in result.tensors if r.verdict is Verdict.EXTRA}
    seen = {found.part for found in result.covered if found.judged}
    faults = (*result.coverage.faults, *result.coverage.reference_faults)
    return LOST[result.lost[0]].format(
        parts=_listed([PARTS[part] for part in StepPart if part in extra - seen]),
        fault=faults[0] if faults else "",
    )


def judged(result: CheckResult) -> str:
    """How much of every part of a run that does not fail was judged."""
    if result.outcome is Outcome.NOT_EQUIVALENT:
        return ""
    parts = [
        PARTS[found.part]
        if found.part in (StepPart.FORWARD, StepPart.BACKWARD)
        else CAVEATS[Caveat.SOME].format(
            part=PARTS[found.part], judged=found.judged, expected=found.expected
        )
        for found in result.covered
        if found.judged
    ]
    return CAVEATS[Caveat.COVERED].format(parts=", ".join(parts)) if parts else ""


def said_of_accepted(result: CheckResult) -> tuple[str, ...]:
    """What every entry of the accept list did, in both comparisons where there are two."""
    isolated = () if result.isolation is None else result.isolation.accepted
    others = {used.entry: used for used in isolated}
    said = []
    for used in result.accepted:
        other = others.get(used.entry)
        both = (used,) if other is None else (used, other)
        count, beyond = max(u.count for u in both), max(u.beyond for u in both)
        words = {
            "id": used.entry.id,
            "reason": used.entry.reason,
            "bound": times(used.entry.bound or 0.0),
        }
        if count:
            said.append(filled(CAVEATS[Caveat.ACCEPTED], count=count, **words))
        if beyond:
            said.append(filled(CAVEATS[Caveat.BEYOND_BOUND], count=beyond, **words))
        if not count and not beyond:
            said.append(CAVEATS[Caveat.ACCEPTS_NOTHING].format(**words))
    return tuple(said)


def _listed(words: Sequence[str]) -> str:
    """forward, backward and update"""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
