"""Gradients that a step by hand reduces elsewhere: into a flat buffer, say, from which it updates.

Enters: every verdict of a run that updates its parameters itself. Leaves: the same, where gradients
that only their own rank has when the step ends are harmless if the update is right, although the
error that such gradients make would have shown in it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from ttrace.analysis.same_step import distance
from ttrace.analysis.sources import Source
from ttrace.core.alignment import Pair
from ttrace.core.finding import Note, Topic
from ttrace.core.ids import Kind, TensorId
from ttrace.core.readings import Statistic
from ttrace.core.results import TensorResult, Verdict


def reduced_elsewhere(
    results: Sequence[TensorResult], pairs: Mapping[TensorId, Pair], reference: Source
) -> tuple[tuple[TensorResult, ...], tuple[Note, ...]]:
    known = {result.id: result for result in results}
    found = {
        result.id: replace(result, verdict=Verdict.HARMLESS)
        for result in results
        if result.id.kind is Kind.MAIN_GRAD and result.verdict is Verdict.CONFLICT
        if _would_show(result, known, pairs, reference)
    }
    if not found:
        return tuple(results), ()
    note = Note(topic=Topic.REDUCED_ELSEWHERE, count=len(found), first=next(iter(found)))
    return tuple(found.get(result.id, result) for result in results), (note,)


def _would_show(
    gradient: TensorResult,
    known: Mapping[TensorId, TensorResult],
    pairs: Mapping[TensorId, Pair],
    reference: Source,
) -> bool:
    """Whether an update from these gradients would have been seen to be another, and is not."""
    before, after = (replace(gradient.id, kind=kind) for kind in (Kind.PARAM, Kind.PARAM_AFTER))
    updated = known.get(after)
    if updated is None or updated.verdict is not Verdict.PASS or gradient.specifics is None:
        return False
    allowed = [j.allowed for j in updated.judgements if j.reading.statistic is Statistic.NORM]
    if not allowed or before not in pairs or after not in pairs:
        return False
    size = distance(reference, pairs[before][0], pairs[after][0])
    return size * gradient.specifics.relative_error > max(allowed)
