"""The view: a result as plain data in the order in which people think, for every form of report.

    headline    NOT EQUIVALENT: layers.1.feed_forward, backward
    look first  step0/layers.1.feed_forward:grad_input.0, on ranks 2, 3
    findings    each culprit with its evidence: statistic, times allowed, place, ranks

Enters: a CheckResult. Leaves: frozen plain values. The only place where forms learn what a result
is made of.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from ttrace.core.evidence import Detail
from ttrace.core.ids import display_module
from ttrace.core.results import CheckResult, Culprit, TensorResult, Verdict

SHOWN_EVIDENCE = 8  # chosen: one place rarely has more tensors of its own


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """One statistic of a tensor against what is allowed."""

    statistic: str
    value: float
    allowed: float
    ratio: float
    place: str  # empty where it is everywhere


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """A tensor that speaks against a culprit."""

    id: str
    verdict: str
    ratio: float | None
    worst: Judged | None
    ranks: tuple[int, ...]
    rows: tuple[str, ...]
    note: str

    @property
    def sentence(self) -> str:
        """row 3 of dim 0 is 1.2e+05 times what is allowed (0.4 > 3e-06), on ranks 2, 3."""
        if self.worst is None or self.verdict != Verdict.MISMATCH:
            return f"{self.verdict}, {self.note}" if self.note else self.verdict
        what = self.worst.place or _STATISTICS.get(self.worst.statistic, self.worst.statistic)
        words = (
            f"{what} is {self.worst.ratio:.3g} times what is allowed "
            f"({self.worst.value:.3g} > {self.worst.allowed:.3g})"
        )
        where = f", on {listed_ranks(self.ranks)}" if self.ranks else ""
        return f"{words}{where}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """A culprit, its evidence and where its code is."""

    where: str
    part: str
    reason: str
    class_name: str
    source: str
    evidence: tuple[Evidence, ...]
    more: int  # tensors of evidence that are not shown


_STATISTICS = {
    "norm": "the norm of the error",
    "gain": "the error along the reference",
    "shift": "the mean error",
    "choices": "the number of choices that differ",
}


def headline(result: CheckResult) -> str:
    """The verdict in one line; it names the first culprit."""
    if result.exit_code == 0:
        worst = max((r.ratio for r in result.tensors if r.ratio is not None), default=0.0)
        equal = sum(r.statistics is not None and r.statistics.equal for r in result.tensors)
        return (
            f"EQUIVALENT: all {result.compared} tensors within tolerance "
            f"({equal} exactly equal, the largest error is {worst:.2f} of its tolerance)"
        )
    if result.exit_code == 1:
        if result.culprits:
            named = result.culprits[0]
            more = f" (and {len(result.culprits) - 1} more)" if len(result.culprits) > 1 else ""
            return f"NOT EQUIVALENT: {named.where}, {named.part}{more}"
        return f"NOT EQUIVALENT: {result.failures[0].id}"
    if result.compared == 0:
        return "UNDECIDED: nothing could be compared"
    first = result.undecided[0]
    return f"UNDECIDED: {len(result.undecided)} tensors, first {first.id}: {first.note}"


def consequences(result: CheckResult) -> str:
    """How far the mistake spreads, where an isolated run told it from its consequences."""
    if result.isolation is None or not result.isolation.culprits:
        return ""
    modules = {failure.id.module for failure in result.failures}
    wrong = len(result.culprits)
    return (
        f"{len(result.failures)} tensors of {len(modules)} modules differ; in the isolated run "
        f"{wrong} place{'s are' if wrong > 1 else ' is'} wrong by itself, the rest is a consequence"
    )


def look_first(result: CheckResult) -> str:
    """What to look at first, in one sentence; empty where there is nothing."""
    for finding in findings(result)[:1]:
        code = f" ({finding.class_name}, {finding.source})" if finding.source else ""
        if finding.evidence:
            first = finding.evidence[0]
            return f"{finding.where}{code}: {first.id}, {first.sentence}"
        return f"{finding.where}{code}"
    shown = result.failures or result.undecided
    return f"{shown[0].id}: {shown[0].note or shown[0].verdict.value}" if shown else ""


def findings(result: CheckResult) -> tuple[Finding, ...]:
    """Every culprit, in order. Evidence of an isolated run is looked up there."""
    source = evidence_of(result)
    tensors = {tensor.id: tensor for tensor in source.tensors}
    details = {detail.id: detail for detail in source.details}
    modules = {module.path: module for module in (result.modules or source.modules)}

    def finding(culprit: Culprit) -> Finding:
        shown = [tensors[id_] for id_ in culprit.evidence if id_ in tensors]
        module = modules.get("" if culprit.where == display_module("") else culprit.where)
        return Finding(
            where=culprit.where,
            part=culprit.part,
            reason=culprit.reason,
            class_name="" if module is None else module.class_name,
            source="" if module is None else module.source,
            evidence=tuple(evidence(t, details.get(t.id)) for t in shown[:SHOWN_EVIDENCE]),
            more=max(0, len(shown) - SHOWN_EVIDENCE),
        )

    return tuple(finding(culprit) for culprit in result.culprits)


def evidence_of(result: CheckResult) -> CheckResult:
    """The comparison in which the culprits were found."""
    isolated = result.isolation
    return isolated if isolated is not None and isolated.culprits == result.culprits else result


def evidence(tensor: TensorResult, detail: Detail | None = None) -> Evidence:
    judged = judgements(tensor)
    rows = () if detail is None else detail.worst_rows[:3]
    return Evidence(
        id=str(tensor.id),
        verdict=tensor.verdict.value,
        ratio=tensor.ratio,
        worst=max(judged, key=lambda j: j.ratio, default=None),
        ranks=tensor.ranks,
        rows=tuple(f"({', '.join(map(str, row.index))})" for row in rows if row.index),
        note=tensor.note,
    )


def judgements(tensor: TensorResult) -> tuple[Judged, ...]:
    return tuple(
        Judged(
            statistic=judgement.reading.statistic.value,
            value=judgement.reading.value,
            allowed=judgement.allowed,
            ratio=judgement.ratio,
            place=judgement.reading.place,
        )
        for judgement in tensor.judgements
    )


def counts(result: CheckResult) -> str:
    """218 pass, 176 mismatch; tolerances from 1 perturbed reference run."""
    found = ", ".join(f"{count} {verdict.value}" for verdict, count in result.counts().items())
    noise = len(result.perturbed)
    runs = f"{noise} perturbed reference run{'s' * (noise != 1)}"
    return f"{found or 'nothing compared'}; tolerances from {runs}"


def not_covered(result: CheckResult) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """What was not seen, by kind; empty where everything was."""
    seen = result.coverage
    groups = (
        ("no gradient reached", seen.unfired),
        ("never called", seen.never_called),
        ("could not be recorded", seen.faults),
    )
    return tuple((what, names) for what, names in groups if names)


def listed_ranks(ranks: Sequence[int]) -> str:
    """ranks 2, 3; long lists are cut."""
    more = " ..." if len(ranks) > 16 else ""
    return f"rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks[:16]))}{more}"
