"""The loss scale: by what the candidate's activation gradients are larger than the reference's.

Enters: pairs, and into how many parts each run splits its batch. Leaves: one factor for the whole
run, and the ones that a correct run may have. It is measured on the first gradient of backward.

Ranks that all see the whole batch may each take the loss of some of its rows. Their losses differ
then, and so do all gradients until they are summed: what looks like replicas are terms. In which
steps that is so is found here; which reading of a tensor counts is measured (measure.py).
"""

from __future__ import annotations

import math
import statistics as stdlib_statistics
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field, replace

from ttrace.analysis.compare.measure import Comparator
from ttrace.core.finding import Note, Topic
from ttrace.core.form import made_at
from ttrace.core.ids import Kind, TensorId
from ttrace.core.logical import LogicalTensor, Pair, as_terms
from ttrace.core.scale import MARGIN, Scales, explained_scales, written_scale

_SHOWN_GAINS = 8  # chosen: one for every microbatch of a rank


@dataclass(frozen=True, slots=True, kw_only=True)
class LossScale:
    """By what the candidate's activation gradients are larger than the reference's, and why.

    `scales` are those that a correct candidate may have.
    """

    factor: float = 1.0
    asked_factor: float = 1.0  # of gradients that were asked for, and train nothing
    scales: Scales = field(default_factory=Scales)
    note: Note | None = None
    split: frozenset[int] = frozenset()  # steps whose loss ranks with the same samples share out

    def may_be_terms(self, id_: TensorId, reference: LogicalTensor) -> bool:
        """Whether what looks like replicas, or like a mean of numbers, may be a sum instead."""
        is_number = not reference.shape and id_.kind.is_activation
        is_term = id_.kind.carries_loss_scale and id_.step in self.split
        return id_.kind.is_unreduced or is_number or is_term

    def factor_of(self, id_: TensorId) -> float:
        """By what this tensor is larger: all that carries the scale is, by the same."""
        if not id_.kind.carries_loss_scale:
            return 1.0
        return self.asked_factor if id_.asked else self.factor


def find_loss_scale(
    comparator: Comparator,
    pairs: Mapping[TensorId, Pair],
    *,
    reference_splits: Sequence[int],
    candidate_splits: Sequence[int],
    declared: float | None = None,
) -> LossScale:
    """Measure the scale of the loss on the first activation gradient of the backward pass.

    It is removed only when splitting the batch explains it, or when it is the one that the
    framework declares; main gradients are compared as they are, so that a wrong scale shows there.
    """
    shares = split_losses(comparator, pairs)
    found = _find_loss_scale(
        comparator,
        pairs,
        reference_splits,
        (*candidate_splits, *shares.values()),
        declared,
        _seed_gains(comparator, pairs, shares),
    )
    asked = _asked_factor(comparator, pairs, found.scales)
    return replace(found, split=frozenset(shares), asked_factor=asked)


def _find_loss_scale(
    comparator: Comparator,
    pairs: Mapping[TensorId, Pair],
    reference_splits: Sequence[int],
    candidate_splits: Sequence[int],
    declared: float | None,
    gains: Sequence[float],
) -> LossScale:
    if declared is not None:
        scales = Scales(allowed=(declared,), likely=declared)
        return LossScale(factor=declared, scales=scales, note=_scale_note(declared, gains))
    scales = Scales(allowed=explained_scales(reference_splits, candidate_splits))
    if not gains:
        return LossScale(scales=scales)
    middle = stdlib_statistics.median(gains)
    nearest = scales.nearest(middle)
    if sorted(reference_splits) == sorted(candidate_splits):
        # Nothing explains another scale, unless it is made up for later, as in pipelines.
        either = Scales(allowed=(1.0, nearest))
        if either.nearest(_main_gain(comparator, pairs)) != 1.0:
            scales = Scales()
    if not _are_alike(gains):
        # One scale for all ranks, so that what a rank does to its own loss shows in the loss alone.
        scales = Scales(allowed=(scales.nearest(middle),))
    elif middle > 0 and scales.is_none(middle) and _is_undone(comparator, pairs):
        scales = Scales(allowed=(*scales.allowed, written_scale(middle)))
    factor = scales.of(middle)
    scales = replace(scales, likely=scales.nearest(middle))
    return LossScale(factor=factor, scales=scales, note=_scale_note(factor, gains))


def find_isolated_scale(
    comparator: Comparator, pairs: Mapping[TensorId, Pair], scales: Scales
) -> LossScale:
    """The scale that an isolated run took for every gradient after the first."""
    shares = split_losses(comparator, pairs)
    gains = _seed_gains(comparator, pairs, shares)
    factor = scales.of(stdlib_statistics.median(gains)) if gains else 1.0
    return LossScale(
        factor=factor,
        scales=scales,
        note=_scale_note(factor, gains),
        split=frozenset(shares),
        asked_factor=_asked_factor(comparator, pairs, scales),
    )


def _asked_factor(comparator: Comparator, pairs: Mapping[TensorId, Pair], scales: Scales) -> float:
    """A gradient that is asked for is often that of a sum, where a loss is a mean."""
    gains = _seed_gains(comparator, pairs, (), asked=True)
    return replace(scales, likely=1.0).of(stdlib_statistics.median(gains)) if gains else 1.0


def _seed_gains(
    comparator: Comparator,
    pairs: Mapping[TensorId, Pair],
    shares: Container[int],
    *,
    asked: bool = False,
) -> list[float]:
    """How large the first gradient of backward is on every rank, against the reference's.

    Of the first step in which that is a number: one that overflowed tells nothing.
    """
    seeds = _seeds(pairs, asked=asked)
    for step in sorted(seeds):
        reference, candidate = seeds[step]
        candidate = (as_terms(candidate) if step in shares else None) or candidate
        gains = [comparator.gain(reference, piece) for piece in candidate.pieces]
        if found := [gain for gain in gains if math.isfinite(gain) and gain != 0]:
            return found
    return []


def _seeds(pairs: Mapping[TensorId, Pair], *, asked: bool) -> dict[int, Pair]:
    """The first gradient of backward in every step, that of more than one number."""
    first: dict[int, tuple[int, Pair]] = {}
    for id_, pair in pairs.items():
        is_wanted = id_.kind.is_gradient_of_activation and id_.asked == asked
        if is_wanted and pair[0].volume > 1 and not pair[1].gaps:
            made = made_at(pair[0].pieces)
            if id_.step not in first or made < first[id_.step][0]:
                first[id_.step] = made, pair
    return {step: pair for step, (_, pair) in first.items()}


def _main_gain(comparator: Comparator, pairs: Mapping[TensorId, Pair]) -> float:
    gains = [
        comparator.gain(reference, candidate.pieces[0])
        for id_, (reference, candidate) in pairs.items()
        if id_.kind is Kind.MAIN_GRAD
    ]
    gains = [gain for gain in gains if math.isfinite(gain) and gain != 0]
    return stdlib_statistics.median(gains) if gains else 1.0


def _are_alike(gains: Sequence[float]) -> bool:
    """Whether every rank scales its loss by the same."""
    return max(gains) - min(gains) <= MARGIN * abs(stdlib_statistics.median(gains))


def _is_undone(comparator: Comparator, pairs: Mapping[TensorId, Pair]) -> bool:
    """Whether main gradients are as they should be, whatever the scale of the loss.

    To a tenth of what tells scales apart: a wrong scale shows in them.
    """
    has_main = any(id_.kind is Kind.MAIN_GRAD for id_ in pairs)
    return has_main and abs(_main_gain(comparator, pairs) - 1) <= MARGIN / 10


def _scale_note(factor: float, gains: Sequence[float]) -> Note | None:
    if not gains:
        return None
    if not _are_alike(gains):
        return Note(topic=Topic.UNEQUAL_WEIGHTS, gains=tuple(gains[:_SHOWN_GAINS]))
    return None if factor == 1.0 else Note(topic=Topic.LOSS_SCALE, factor=factor)


# Chosen: two wrong losses may be wrong in opposite ways; shares of one are nearer by far more.
_NEARER = 0.1


def split_losses(comparator: Comparator, pairs: Mapping[TensorId, Pair]) -> dict[int, int]:
    """Steps whose loss is the sum or the mean of what ranks hold, and of how many."""
    found: dict[int, int] = {}
    for id_, (reference, candidate) in pairs.items():
        terms = as_terms(candidate) if id_.kind is Kind.LOSS and candidate.replicas else None
        if terms is None or len(terms.pieces) != 1:
            continue
        each = [comparator.gain(reference, p) for p in (*candidate.pieces, *candidate.replicas)]
        total = sum(each)
        alone = min(abs(gain - 1) for gain in each)
        together = min(abs(total - 1), abs(total / len(each) - 1))
        if len(set(each)) > 1 and together < _NEARER * alone:
            found[id_.step] = len(each)
    return found
