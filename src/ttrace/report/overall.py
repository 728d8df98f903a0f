"""What is said of a result as a whole: its headline, how sure and how near it is, and its notes.

    headline    NOT EQUIVALENT (strong, 12x the tolerance): layers.1.feed_forward, backward
    counts      218 pass, 176 mismatch; tolerances from 1 perturbed reference run
    nearness    largest error / tolerance by kind: output 0.21, grad 0.27
    judged      judged: forward, backward, reduction (62 of 62), update (62 of 62)

Enters: a CheckResult. Leaves: text, and no decision: those are properties of the result. What is
said of one tensor or culprit is in wording.py.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from ttrace.core.finding import Note
from ttrace.core.ids import Kind, display_module
from ttrace.core.results import CheckResult, Outcome, StepPart, Strength, Verdict
from ttrace.report.catalogue.notes import LOST, PARTS, TOPICS
from ttrace.report.catalogue.sentences import Line
from ttrace.report.numbers import filled, times
from ttrace.report.wording import difference, finding, line, mesh_of, place

_SHOWN = 3  # chosen: modules of a note
_OTHERS = {
    Verdict.BORDERLINE: Line.SOME_BORDERLINE,
    Verdict.HARMLESS: Line.SOME_HARMLESS,
    Verdict.ACCEPTED: Line.SOME_ACCEPTED,
}


def headline(result: CheckResult) -> str:
    """The outcome in one line; it names the first culprit."""
    if result.outcome is Outcome.EQUIVALENT:
        return _equivalent(result)
    if result.outcome is Outcome.NOT_EQUIVALENT:
        said = strength(result)
        if not result.culprits:
            return line(Line.NOT_EQUIVALENT, strength=said, place=result.failures[0].id)
        others = len(result.culprits) - 1
        more = line(Line.AND_MORE, count=others) if others else ""
        return line(Line.NOT_EQUIVALENT, strength=said, place=place(result.culprits[0])) + more
    if not result.undecided and result.fewer_steps is not None and not result.lost:
        fewer = result.fewer_steps
        return line(Line.FEWER_STEPS, count=fewer.count, total=fewer.total)
    if not result.undecided:
        return _lost(result)
    first = result.undecided[0]
    return line(
        Line.UNDECIDED,
        count=len(result.undecided),
        id=first.id,
        note=finding(first, mesh_of(result)),
    )


def _some(modules: Sequence[str | None]) -> str:
    """The first few by name, and how many more."""
    names = [line(Line.THE_STEP) if m is None else display_module(m) for m in modules[:_SHOWN]]
    more = len(modules) - len(names)
    return ", ".join(names) + (line(Line.AND_MORE, count=more) if more else "")


def _equivalent(result: CheckResult) -> str:
    found = {verdict: [t for t in result.tensors if t.verdict is verdict] for verdict in _OTHERS}
    worst = max((tensor.ratio or 0.0 for tensor in result.nearest().values()), default=0.0)
    others = [
        line(_OTHERS[verdict], count=len(tensors), worst=worst)
        for verdict, tensors in found.items()
        if tensors
    ]
    # 202 pass, 2 are borderline, 1 that was accepted has no statistics: 204 compared, 202 within
    outside = sum(t.statistics is not None for tensors in found.values() for t in tensors)
    said = line(
        Line.EQUIVALENT_BUT if others else Line.EQUIVALENT,
        parts=_in_parts(result),
        compared=result.compared,
        within=result.compared - outside,
        others=", ".join(others),
        equal=sum(r.statistics is not None and r.statistics.equal for r in result.tensors),
        worst=worst,
    )
    return "; ".join((said, *_unseen(result)))


def strength(result: CheckResult) -> str:
    """How strong the evidence is, where it is not beyond doubt."""
    if result.strength not in (Strength.BORDERLINE, Strength.STRONG):
        return ""
    ratio = times(result.blamed_in.largest_ratio)
    return line(Line.STRENGTH, strength=result.strength.value, ratio=ratio)


def nearness(result: CheckResult) -> str:
    """How near a run that does not fail came: the largest ratio of every kind."""
    if result.outcome is Outcome.NOT_EQUIVALENT:
        return ""
    found = {kind: tensor.ratio for kind, tensor in result.nearest().items() if tensor.ratio}
    kinds = [f"{kind.value.replace('_', ' ')} {found[kind]:.2g}" for kind in Kind if kind in found]
    return line(Line.NEARNESS, kinds=", ".join(kinds)) if kinds else ""


def follow_on(result: CheckResult) -> str:
    """How far the mistake spreads, where an isolated run told it from what follows from it."""
    if result.blamed_in is result:
        return ""
    modules = {failure.id.module for failure in result.failures}
    count = len(result.culprits)
    if not result.failures:
        return line(Line.ISOLATED_ALONE, count=count)
    return line(
        Line.FOLLOW_ON,
        failures=len(result.failures),
        modules=len(modules),
        count=count,
        rest=line(Line.REST) if len(result.failures) > count else "",
    )


def counts(result: CheckResult) -> str:
    """218 pass, 176 mismatch; tolerances from 1 perturbed reference run."""
    found = ", ".join(f"{count} {verdict.value}" for verdict, count in result.counts().items())
    runs = len(result.perturbed)
    return line(Line.COUNTS, verdicts=found or line(Line.NO_COUNTS), runs=runs)


def sampled(result: CheckResult) -> str:
    """Which share of large suspects a closer look has seen; empty where it was all of them."""
    shares = [
        detail.examined / math.prod(detail.shape)
        for detail in result.blamed_in.details
        if detail.examined is not None
    ]
    if not shares:
        return ""
    return line(Line.SAMPLED, count=len(shares), least=min(shares))


def captured(result: CheckResult) -> str:
    """Whether all gradients came; one sentence where nothing at all was missed."""
    seen = result.coverage
    if seen.hooks_fired != seen.hooks_expected:
        return line(Line.HOOKS, fired=seen.hooks_fired, expected=seen.hooks_expected)
    hooks = line(
        Line.ALL_HOOKS if seen.hooks_expected else Line.NO_HOOKS, expected=seen.hooks_expected
    )
    return hooks if not_covered(result) else line(Line.CAPTURED, hooks=hooks)


def not_covered(result: CheckResult) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What was not seen, by kind; empty where everything was."""
    seen = result.coverage
    groups = (
        (Line.UNFIRED, seen.unfired),
        (Line.NEVER_CALLED, seen.never_called),
        (Line.CANDIDATE_ONLY, seen.candidate_only),
        (Line.FAULTS, seen.faults),
        (Line.REFERENCE_FAULTS, seen.reference_faults),
    )
    return tuple((line(key), names) for key, names in groups if names)


def note(of_result: Note) -> str:
    """What one should know of the whole comparison."""
    return filled(
        TOPICS[of_result.topic],
        text=of_result.text,
        count=of_result.count,
        total=of_result.total,
        first=of_result.first,
        difference="" if of_result.difference is None else difference(of_result.difference),
        factor=math.nan if of_result.factor is None else of_result.factor,
        gains=", ".join(f"{gain:.4g}" for gain in of_result.gains),
        modules=_some(of_result.modules),
    )


def _in_parts(result: CheckResult) -> str:
    """The parts of which a verdict speaks; empty where it is all of them."""
    whole = [PARTS[found.part].name for found in result.covered if found.is_whole]
    if len(whole) == len(StepPart):
        return ""
    return line(Line.IN_PARTS, parts=_listed(whole))


def _unseen(result: CheckResult) -> Iterator[str]:
    """What a verdict does not speak of."""
    was_judged = True
    for found in result.covered:
        if not found.judged:
            if was_judged:  # otherwise it follows from the one before
                yield PARTS[found.part].absent
        elif not found.is_whole:
            yield line(
                Line.PART_OF_IT,
                part=PARTS[found.part].name,
                judged=found.judged,
                expected=found.expected,
            )
        was_judged = found.judged > 0
    if alone := result.coverage.candidate_only:
        yield line(Line.CALLED_BY_CANDIDATE, count=len(alone))


def _lost(result: CheckResult) -> str:
    """Why nothing is decided, though nothing differs."""
    extra = {StepPart.shown_by(r.id.kind) for r in result.tensors if r.verdict is Verdict.EXTRA}
    seen = {found.part for found in result.covered if found.judged}
    faults = (*result.coverage.faults, *result.coverage.reference_faults)
    return LOST[result.lost[0]].format(
        parts=_listed([PARTS[part].name for part in StepPart if part in extra - seen]),
        fault=faults[0] if faults else "",
    )


def judged(result: CheckResult) -> str:
    """How much of every part of a run that does not fail was judged."""
    if result.outcome is Outcome.NOT_EQUIVALENT:
        return ""
    parts = [
        PARTS[found.part].name
        if found.part in (StepPart.FORWARD, StepPart.BACKWARD)
        else line(
            Line.SOME, part=PARTS[found.part].name, judged=found.judged, expected=found.expected
        )
        for found in result.covered
        if found.judged
    ]
    return line(Line.COVERED, parts=", ".join(parts)) if parts else ""


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
            said.append(line(Line.ACCEPTED, count=count, **words))
        if beyond:
            said.append(line(Line.BEYOND_BOUND, count=beyond, **words))
        if not count and not beyond:
            said.append(line(Line.ACCEPTS_NOTHING, **words))
    return tuple(said)


def _listed(words: Sequence[str]) -> str:
    """forward, backward and update"""
    return " and ".join(part for part in (", ".join(words[:-1]), *words[-1:]) if part)
