"""The verdict card: the five facts of an answer, the same in the page, the terminal and elsewhere.

    where     layers.1.feed_forward, backward (FeedForward, model.py:88)
    what      missing all-reduce over tp
    how sure  certain: 8 million x its tolerance
    ranks     tp1 (ranks 1, 3)
    next      look for an all-reduce that is not called here; ttrace export ...

Enters: a CheckResult. Leaves: one card for each root cause, the first one first.
"""

from __future__ import annotations

import math
import shlex
from dataclasses import dataclass, replace

from ttrace.core.blame import Culprit
from ttrace.core.code import Excerpt
from ttrace.core.evidence import Detail
from ttrace.core.mesh import Mesh
from ttrace.core.results import CheckResult, Strength, TensorResult, Verdict
from ttrace.report import view, wording
from ttrace.report.badges import Badge, badge
from ttrace.report.caveats import EXPECTED
from ttrace.report.hints import hint
from ttrace.report.ranks import listed_ranks, mesh_of, on_ranks
from ttrace.report.view import RootCause
from ttrace.report.words import Line

_ELEMENTS = 3  # chosen: enough to see what is wrong with them


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """Noise, tolerance and error of one statistic, relative to the reference's norm."""

    noise: float | None
    allowed: float
    error: float


@dataclass(frozen=True, slots=True, kw_only=True)
class NextCommand:
    """Something to run next."""

    purpose: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    """One root cause as five facts, and what stands behind them."""

    cause: RootCause
    badge: Badge
    looks: str  # the kind of mistake in a sentence, or the nearest; maybe empty
    strength: Strength
    sure: str
    bar: Bar | None
    ranks: tuple[int, ...]  # empty where nobody knows
    ranks_said: str
    hint: str  # what to do next in code
    commands: tuple[NextCommand, ...]
    values: tuple[str, ...]  # what both runs have there, the worst first
    why: str  # it is blamed
    code: tuple[Excerpt, ...]
    step: int
    expected: str  # why it may be no mistake; maybe empty

    @property
    def source(self) -> str:
        """The line to look at: the user's own, or where the class is."""
        return self.code[0].place if self.code else self.cause.source

    @property
    def behind(self) -> str:
        """Linear, in FeedForward.forward (model.py:42)"""
        if not self.code:
            return wording.with_commas(self.cause.class_name, self.cause.source)
        function = wording.line(Line.IN_FUNCTION, name=self.code[0].function, place=self.source)
        return wording.with_commas(self.cause.class_name, function)


def cards(result: CheckResult) -> tuple[Card, ...]:
    """Root causes that differ in the numbers of their paths alone share a card."""
    tensors = {tensor.id: tensor for tensor in result.blamed_in.tensors}
    mesh = mesh_of(result)
    world = max((run.world_size for run in result.runs), default=1)
    details = {detail.id: detail for detail in result.blamed_in.details}
    topics = frozenset(note.topic for note in (*result.notes, *result.blamed_in.notes))

    def card(cause: RootCause) -> Card:
        culprit = cause.culprit
        shown = [tensors[id_] for id_ in culprit.evidence if id_ in tensors]
        first = shown[0] if shown else None
        strength = Strength.of(max((tensor.severity for tensor in shown), default=math.inf))
        detail = None if first is None else details.get(first.id)
        ranks = () if first is None else _all_ranks(detail) or first.ranks
        return Card(
            cause=cause,
            badge=badge(culprit, first, mesh, topics),
            looks=_looks(culprit, mesh),
            strength=strength,
            sure=_sure(strength, first),
            bar=None if first is None else _bar(first, detail),
            ranks=ranks,
            ranks_said=_ranks(ranks, mesh, world),
            hint=hint(culprit, first),
            commands=tuple(_commands(result, first)),
            values=() if detail is None else _values(detail, mesh, world),
            why=wording.plain_reason(culprit, tensors, mesh),
            code=tuple(map(_without_tabs, culprit.code)),
            step=first.id.step if first is not None else (culprit.steps or (0,))[0],
            expected="" if culprit.expected is None else EXPECTED[culprit.expected],
        )

    return tuple(map(card, view.grouped(result)))


def _without_tabs(excerpt: Excerpt) -> Excerpt:
    """Indented by spaces, which every form shows."""
    return replace(excerpt, lines=tuple(text.expandtabs(4) for text in excerpt.lines))


def _looks(culprit: Culprit, mesh: Mesh) -> str:
    """What a diagnosis says, or how near the nearest comes."""
    if culprit.differences:
        return wording.other_numbers(culprit.differences, mesh)
    if culprit.diagnosis is not None:
        return wording.diagnosis(culprit.diagnosis, mesh)
    if culprit.nearest is None:
        return ""
    said = wording.diagnosis(culprit.nearest.diagnosis, mesh)
    if not culprit.nearest.explained:
        return wording.line(Line.LIKENESS, said=said)
    return wording.line(Line.NEAREST, said=said, share=culprit.nearest.explained)


def _sure(strength: Strength, first: TensorResult | None) -> str:
    if first is None:
        return strength.value
    kind = wording.line(Line.KIND_OF_FAILURE, verdict=first.verdict.value)
    return f"{strength.value}: {wording.size(first) or kind}"


def _bar(tensor: TensorResult, detail: Detail | None) -> Bar | None:
    """By the statistic that decides; of replicas that disagree, the one that is furthest off."""
    worst, tolerance, found = tensor.worst, tensor.tolerance, tensor.statistics
    if worst is None or tolerance is None or found is None or not worst.allowed:
        return None
    unit = found.reference_norm or 1.0
    allowed, error = worst.allowed / unit, worst.reading.value / unit
    if tensor.verdict is Verdict.CONFLICT and detail is not None:
        held = max(detail.shards, key=lambda shard: shard.ratio or 0.0)
        if not held.ratio or not math.isfinite(held.relative_error):
            return None
        allowed, error = held.relative_error / held.ratio, held.relative_error
    share = None if tolerance.noise is None else tolerance.noise / (tolerance.error_norm or 1.0)
    return Bar(noise=None if share is None else allowed * share, allowed=allowed, error=error)


def _all_ranks(detail: Detail | None) -> tuple[int, ...]:
    """Of a tensor that is wrong on every rank that holds a part of it."""
    if detail is None or not detail.is_wrong_everywhere:
        return ()
    return tuple(sorted({rank for shard in detail.shards for rank in shard.ranks}))


def _values(detail: Detail, mesh: Mesh, world: int) -> tuple[str, ...]:
    """A number rank by rank where that is all there is, and else the worst elements."""
    if not detail.elements:
        return ()
    if detail.scalars:
        known = detail.elements[0].reference
        reference = wording.line(Line.REFERENCE_VALUE, value=known)
        held = [
            wording.line(Line.VALUE, where=listed_ranks(scalar.ranks, mesh), value=scalar.value)
            for scalar in detail.scalars
        ]
        return (reference, *held)
    return tuple(
        wording.line(
            Line.ELEMENT,
            index=", ".join(map(str, element.index)),
            candidate=element.candidate,
            reference=element.reference,
            where=f", {on_ranks(element.ranks, mesh)}" if world > 1 else "",
        )
        for element in detail.elements[:_ELEMENTS]
    )


def _ranks(ranks: tuple[int, ...], mesh: Mesh, world: int) -> str:
    """Nothing where there is one, or nobody knows."""
    if world == 1 or not ranks:
        return ""
    return wording.line(Line.EVERY_RANK) if len(ranks) == world else listed_ranks(ranks, mesh)


def _commands(result: CheckResult, first: TensorResult | None) -> list[NextCommand]:
    """What repeats the comparison, and what brings the tensor into a notebook."""
    found = []
    if first is not None and first.statistics is not None and not first.statistics.cells:
        trace, id_ = result.blamed_in.candidate, str(first.id)
        export = shlex.join(["ttrace", "export", trace, id_, "wrong.safetensors"])
        found.append(NextCommand(purpose=wording.line(Line.EXPORT_IT), text=export))
    if result.command:
        found.append(NextCommand(purpose=wording.line(Line.REPEAT_IT), text=result.command))
    return found
