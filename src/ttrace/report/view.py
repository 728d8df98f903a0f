"""The view: a result as plain data in the order in which people think, for every form of report.

    headline    NOT EQUIVALENT: layers.1.feed_forward, backward
    look first  step0/layers.1.feed_forward:grad_input.0, on ranks 2, 3
    root causes each culprit with its evidence: statistic, times allowed, place, ranks

Enters: a CheckResult. Leaves: frozen plain values with their words. The only place where forms
learn what a result is made of.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ttrace.core.blame import Culprit
from ttrace.core.evidence import Detail
from ttrace.core.ids import TensorId
from ttrace.core.mesh import Mesh
from ttrace.core.results import CheckResult, TensorResult
from ttrace.report import wording
from ttrace.report.numbers import times
from ttrace.report.wording import mesh_of, on_ranks

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
    sentence: str
    rows: tuple[str, ...]
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RootCause:
    """A culprit in words, its evidence and where its code is."""

    where: str
    phase: str  # empty where its place says it
    reason: str
    class_name: str
    source: str
    evidence: tuple[Evidence, ...]
    more: int  # tensors of evidence that are not shown
    culprit: Culprit  # or the one that speaks for several
    places: tuple[str, ...] = ()  # all of them, where several culprits are shown as one

    @property
    def place(self) -> str:
        return wording.with_commas(self.where, self.phase)


def look_first(result: CheckResult) -> str:
    """What to look at first, in one sentence; empty where there is nothing."""
    for cause in grouped(result)[:1]:
        code = f" ({cause.class_name}, {cause.source})" if cause.source else ""
        if cause.evidence:
            first = cause.evidence[0]
            return f"{cause.where}{code}: {first.id}, {first.sentence}"
        return f"{cause.where}{code}"
    shown = result.failures or result.undecided
    return (
        f"{shown[0].id}: {wording.finding(shown[0], mesh_of(result)) or shown[0].verdict.value}"
        if shown
        else ""
    )


def root_causes(result: CheckResult) -> tuple[RootCause, ...]:
    """Every culprit, in order. Evidence of an isolated run is looked up there."""
    source = result.blamed_in
    tensors = {tensor.id: tensor for tensor in source.tensors}
    details = {detail.id: detail for detail in source.details}
    modules = {module.path: module for module in (result.modules or source.modules)}
    mesh = mesh_of(result)

    def root_cause(culprit: Culprit) -> RootCause:
        shown = [tensors[id_] for id_ in culprit.evidence if id_ in tensors]
        named = culprit.blame.modules
        module = modules.get(named[0]) if len(named) == 1 else None
        return RootCause(
            where=wording.where(culprit),
            phase=wording.phase(culprit.blame),
            reason=wording.reason(culprit, tensors, mesh),
            class_name="" if module is None else module.class_name,
            source="" if module is None else module.source,
            evidence=tuple(_evidence(t, details.get(t.id), mesh) for t in shown[:SHOWN_EVIDENCE]),
            more=max(0, len(shown) - SHOWN_EVIDENCE),
            culprit=culprit,
        )

    return tuple(root_cause(culprit) for culprit in result.culprits)


def grouped(result: CheckResult) -> tuple[RootCause, ...]:
    """Root causes, where culprits that differ in the numbers of their path alone are one.

    They have the same class, phase, reason and kind of error: layers of a model, experts of a
    layer. The one with the strongest evidence speaks for all.
    """
    tensors = {tensor.id: tensor for tensor in result.blamed_in.tensors}
    groups: dict[tuple[object, ...], list[tuple[Culprit, RootCause]]] = {}
    for culprit, cause in zip(result.culprits, root_causes(result), strict=True):
        # A place stands once in a group.
        number = sum(cause.where == other.where for g in groups.values() for _, other in g)
        key = (_pattern(cause.where), number, cause.class_name, *_kind_of(culprit, tensors))
        groups.setdefault(key, []).append((culprit, cause))
    mesh = mesh_of(result)
    return tuple(_as_one(group, tensors, mesh) for group in groups.values())


def _kind_of(culprit: Culprit, tensors: Mapping[TensorId, TensorResult]) -> tuple[object, ...]:
    """What culprits with one cause have in common."""
    mistake = None if culprit.diagnosis is None else culprit.diagnosis.mistake
    first = tensors.get(culprit.evidence[0]) if culprit.evidence else None
    shown = None if first is None else (first.verdict, first.finding)
    return culprit.blame.phase, culprit.reason, mistake, culprit.expected, shown


def _as_one(
    group: Sequence[tuple[Culprit, RootCause]],
    tensors: Mapping[TensorId, TensorResult],
    mesh: Mesh,
) -> RootCause:
    first = group[0][1]
    if len(group) == 1:
        return first
    places = tuple(cause.where for _, cause in group)
    firsts = [tensors[c.evidence[0]] for c, _ in group if c.evidence and c.evidence[0] in tensors]
    ranks = sorted({rank for tensor in firsts for rank in tensor.ranks})
    is_somewhere = all(tensor.ranks for tensor in firsts) and ranks
    return replace(
        first,
        where=wording.several(_pattern(first.where), places),
        reason=f"{first.reason}, {on_ranks(ranks, mesh)}" if is_somewhere else first.reason,
        places=places,
    )


def _pattern(where: str) -> str:
    """layers.3.mlp.experts.17 -> layers.*.mlp.experts.*"""
    return re.sub(r"(?<![^.])\d+(?![^.])", "*", where)


def _evidence(tensor: TensorResult, detail: Detail | None, mesh: Mesh) -> Evidence:
    rows = () if detail is None else detail.worst_rows[:3]
    return Evidence(
        id=str(tensor.id),
        sentence=wording.evidence_sentence(tensor, mesh),
        rows=tuple(f"({', '.join(map(str, row.index))})" for row in rows if row.index),
        note=wording.finding(tensor, mesh),
    )


def ratio_cell(tensor: TensorResult) -> str:
    """Error over tolerance in a table; a dash where there is none, or it is not what fails."""
    ratio = tensor.ratio
    is_beside = ratio is not None and tensor.verdict.is_failure and ratio <= 1
    return "-" if ratio is None or is_beside else times(ratio)


def judgements(tensor: TensorResult) -> tuple[Judged, ...]:
    return tuple(
        Judged(
            statistic=judgement.reading.statistic.value,
            value=judgement.reading.value,
            allowed=judgement.allowed,
            ratio=judgement.ratio,
            place=wording.reading_place(judgement.reading),
        )
        for judgement in tensor.judgements
    )
