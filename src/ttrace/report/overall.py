"""What is said of a result as a whole: its headline, how sure and how near it is, and its notes.

    headline    NOT EQUIVALENT (strong, 12x the tolerance): layers.1.feed_forward, backward
    counts      218 pass, 176 mismatch; tolerances from 1 perturbed reference run
    nearness    largest error / tolerance by kind: output 0.21, grad 0.27

Enters: a CheckResult. Leaves: text. What is said of one tensor or culprit is in wording.py.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

from ttrace.core.finding import Note
from ttrace.core.ids import Kind, display_module
from ttrace.core.results import CheckResult, Outcome, Strength, Verdict
from ttrace.report import scope
from ttrace.report.numbers import filled, times
from ttrace.report.ranks import mesh_of
from ttrace.report.wording import difference, finding, line, place
from ttrace.report.words import TOPICS, Line

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
        return scope.lost(result)
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
    outside = sum(t.statistics is not None for tensors in found.values() for t in tensors)
    said = line(
        Line.EQUIVALENT_BUT if others else Line.EQUIVALENT,
        parts=scope.in_parts(result),
        compared=result.compared,
        within=result.compared - outside,
        others=", ".join(others),
        equal=sum(r.statistics is not None and r.statistics.equal for r in result.tensors),
        worst=worst,
    )
    return "; ".join((said, *scope.unseen(result)))


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
