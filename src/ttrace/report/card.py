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
from collections.abc import Sequence
from dataclasses import dataclass, replace

from ttrace.core.blame import Culprit, Diagnosis, Mistake, Reason, Stage
from ttrace.core.evidence import Detail
from ttrace.core.finding import Specifics, Topic
from ttrace.core.mesh import Mesh
from ttrace.core.record import Excerpt
from ttrace.core.results import CheckResult, Strength, TensorResult, Verdict
from ttrace.report import view, wording
from ttrace.report.catalogue.culprits import EXPECTED, MISTAKES, PHASES, REASONS, STAGES
from ttrace.report.catalogue.sentences import Line
from ttrace.report.catalogue.tensors import FINDINGS
from ttrace.report.view import RootCause
from ttrace.report.wording import listed_ranks, mesh_of, on_ranks

UNKNOWN = "no known pattern fits"
UNEQUAL_WEIGHTS = "microbatches weighed unequally"

_NO_AXES = ("ranks", "microbatches")
# Reasons whose hint holds whatever the tensor looks like.
_DECISIVE = (
    *(Reason.NO_TENSOR_OF_IT, Reason.OTHER_PARAMETERS, Reason.OTHER_SPLIT, Reason.OTHER_BY_THEN),
    *(Reason.OTHER_DATA, Reason.CUT_OFF_FROM_AUTOGRAD, Reason.CLIPS_ALONE, Reason.NO_STATE),
)
_ELEMENTS = 3  # chosen: enough to see what is wrong with them


@dataclass(frozen=True, slots=True, kw_only=True)
class Badge:
    """A kind of mistake in a few words."""

    words: str
    is_known: bool = True
    nearest: str = ""  # where no kind is known, the one that comes nearest


def badge(
    culprit: Culprit,
    first: TensorResult | None,
    mesh: Mesh,
    topics: frozenset[Topic] = frozenset(),
) -> Badge:
    """What a culprit looks like, by the most telling of what is known.

    `first` is that of its evidence, `topics` are those of the result's notes.
    """
    words = _known_words(culprit, first, mesh)
    is_loss = culprit.blame.stage is Stage.LOSS
    if is_loss and Topic.UNEQUAL_WEIGHTS in topics and culprit.diagnosis is None:
        words = UNEQUAL_WEIGHTS
    if words:
        return Badge(words=words)
    near = culprit.nearest
    return Badge(
        words=UNKNOWN,
        is_known=False,
        nearest="" if near is None else mistake_badge(near.diagnosis),
    )


def _known_words(culprit: Culprit, first: TensorResult | None, mesh: Mesh) -> str:
    if culprit.expected is not None:
        return EXPECTED[culprit.expected].badge
    if culprit.differences:
        return f"{culprit.differences[0].name} differs"
    if culprit.diagnosis is not None:
        return mistake_badge(culprit.diagnosis)
    over = _over(_disagreeing(first, mesh))
    if words := REASONS[culprit.reason].badge:
        return words.format(over=over, factor=culprit.factor or 0.0)
    if first is not None and first.finding is not None and (words := FINDINGS[first.finding].badge):
        gain = 0.0 if first.statistics is None else first.statistics.gain
        return words.format(over=over, gain=gain)
    stage = culprit.blame.stage
    return "" if stage is None else STAGES[stage].badge


def mistake_badge(found: Diagnosis) -> str:
    """One from outside has its name."""
    if found.mistake not in set(Mistake):
        return found.mistake.replace("_", " ")
    axes = found.axes or tuple(name for name in found.sizes if name not in _NO_AXES)
    over = _over(axes or found.sizes)
    return MISTAKES[Mistake(found.mistake)].badge.format(
        over=over, dtype=found.dtype, reference_dtype=found.reference_dtype
    )


def _disagreeing(first: TensorResult | None, mesh: Mesh) -> tuple[str, ...]:
    special = Specifics() if first is None or first.specifics is None else first.specifics
    return mesh.between(special.ranks, special.other_ranks)


def _over(axes: Sequence[str]) -> str:
    return f" over {' or '.join(axes)}" if axes else ""


def hint(culprit: Culprit, first: TensorResult | None) -> str:
    """The most telling hint; `first` is that of its evidence."""
    if culprit.differences:
        return f"check where {culprit.differences[0].name} is set"
    of_reason = REASONS[culprit.reason].hint
    if culprit.reason in _DECISIVE:
        return of_reason
    nearest = None if culprit.nearest is None else culprit.nearest.diagnosis
    found = culprit.diagnosis or nearest
    if found is not None and found.mistake in set(Mistake):
        return MISTAKES[Mistake(found.mistake)].hint
    of_finding = "" if first is None or first.finding is None else FINDINGS[first.finding].hint
    if said := of_reason or of_finding:
        return said
    stage, phase = culprit.blame.stage, culprit.blame.phase
    return PHASES[phase].hint if stage is None else STAGES[stage].hint


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
        first = next(iter(shown), None)
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
            expected="" if culprit.expected is None else EXPECTED[culprit.expected].words,
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
    # All three relative to the reference's norm, of 2 here:
    #     tolerance 3e-7, of which noise 1e-7; the statistic that decides: 4e-7 allowed, found 0.8
    #     -> allowed 2e-7, error 0.4, noise a third of what is allowed: 6.7e-8
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
