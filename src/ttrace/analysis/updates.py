"""Verdicts that updates give: on steps that were left out, and on gradients they do not use.

    overflow    a step that both runs left out, as dynamic loss scaling does: which of its gradients
                are infinite is up to rounding, and to how often the loss was split, and nobody uses
                them. They pass.
    partial     step 0 overflowed; rank 0 leaves it out, rank 1 updates its parameters. Or the
                reference left it out, and the candidate made it. New parameters of it fail.
    elsewhere   a step by hand reduces gradients into a flat buffer, say, from which it updates:
                those that only their own rank has are harmless if the update is right, although
                the error that they make would have shown in it.

Enters: verdicts, and who recorded what. Leaves: the same, with these. A step that either run
updated from is not left out; nor is any of a run that never updates. Of a rank that was not
recorded whole, or that updates by hand, nobody knows whether it made a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ttrace.analysis.same_step import distance
from ttrace.analysis.sources import Source
from ttrace.core.finding import Finding, Note, Specifics, Topic
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.logical import Pair
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.rows import RecordRows
from ttrace.core.statistics import Statistic

_GRADIENTS = frozenset({Kind.GRAD, Kind.ACCUMULATED_GRAD, Kind.REDUCED_GRAD, Kind.MAIN_GRAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Who made a step of the optimizer, and who has gradients of it and made none."""

    updated: frozenset[int]
    idle: frozenset[int]


def fail_partial_steps(
    results: Sequence[TensorResult], reference: Source, candidate: Source
) -> tuple[TensorResult, ...]:
    """The verdicts, with those of steps that only some ranks, or only the candidate, made."""
    if candidate.faults or reference.faults or candidate.updated_by_hand:
        return tuple(results)
    # Runs that update in step 1. Who has gradients of step 0 and no update (idle), who has one:
    #     reference idle {0}, updated {}     candidate idle {0}, updated {1}    rank 1 is wrong
    #     reference idle {}, updated {0}     candidate idle {0}, updated {1}    rank 0 is wrong
    #     reference idle {0}, updated {}     candidate idle {}, updated {0, 1}  all are wrong
    expected, made = _steps(reference), _steps(candidate)
    updates = any(step.updated for step in expected.values())
    wrong: dict[TensorId, TensorResult] = {}
    for number, step in made.items():
        of_reference = expected.get(number)
        if not step.updated or of_reference is None:
            continue
        is_left_out = updates and bool(of_reference.idle) and not of_reference.updated
        if step.idle:
            wrong |= dict(_by_some(results, candidate, number, step, is_left_out=is_left_out))
        elif is_left_out:
            wrong |= dict(_alone(results, number))
    return tuple(wrong.get(result.id, result) for result in results)


def _steps(source: Source) -> dict[int, _Step]:
    found = {}
    for number in source.trace.steps:
        updated = _ranks(source, _is_of(number, frozenset({Kind.PARAM_AFTER})))
        with_gradients = _ranks(source, _is_of(number, _GRADIENTS))
        found[number] = _Step(updated=updated, idle=with_gradients - updated)
    return found


def _ranks(source: Source, is_wanted: Callable[[TensorId], bool]) -> frozenset[int]:
    """Those that recorded any of these ids."""
    return _ranks_of(rows for id_, rows in source.trace.by_id().items() if is_wanted(id_))


def _ranks_of(found: Iterable[RecordRows]) -> frozenset[int]:
    ranks = [rows.table.columns.rank[rows.numbers] for rows in found]
    return frozenset(np.unique(np.concatenate(ranks)).tolist()) if ranks else frozenset()


def _is_of(step: int, kinds: frozenset[Kind]) -> Callable[[TensorId], bool]:
    return lambda id_: id_.step == step and id_.kind in kinds


def _new_parameters(results: Iterable[TensorResult], step: int) -> Iterator[TensorResult]:
    is_new = _is_of(step, frozenset({Kind.PARAM_AFTER}))
    return (r for r in results if is_new(r.id) and not r.id.slot.endswith(MASTER))


def _by_some(
    results: Iterable[TensorResult],
    candidate: Source,
    number: int,
    step: _Step,
    *,
    is_left_out: bool,
) -> Iterator[tuple[TensorId, TensorResult]]:
    """New parameters of which a rank that made no step holds a part or a replica."""
    held = candidate.trace.by_id()
    ranks = tuple(sorted(step.updated if is_left_out else step.idle))
    specifics = Specifics(ranks=tuple(sorted(step.updated)), other_ranks=tuple(sorted(step.idle)))
    for result in _new_parameters(results, number):
        before = held.get(replace(result.id, kind=Kind.PARAM))
        if before is not None and _ranks_of([before]) & step.idle:
            yield (
                result.id,
                replace(
                    result,
                    verdict=Verdict.CONFLICT,
                    finding=Finding.UPDATED_BY_SOME,
                    ranks=ranks,
                    specifics=specifics,
                ),
            )


def _alone(results: Iterable[TensorResult], number: int) -> Iterator[tuple[TensorId, TensorResult]]:
    for result in _new_parameters(results, number):
        finding = Finding.UPDATED_ALONE
        yield result.id, replace(result, verdict=Verdict.MISMATCH, finding=finding)


def excuse_overflowed_steps(tensors: Sequence[TensorResult]) -> tuple[TensorResult, ...]:
    steps = _without_update(tensors)
    return tuple(_excuse_overflow(each) if each.id.step in steps else each for each in tensors)


def _without_update(tensors: Iterable[TensorResult]) -> frozenset[int]:
    """Steps after which no run has a new parameter, of runs that have them in others."""
    of: dict[Kind, set[int]] = {}
    for tensor in tensors:
        of.setdefault(tensor.id.kind, set()).add(tensor.id.step)
    updated = of.get(Kind.PARAM_AFTER, set())
    return frozenset(of.get(Kind.PARAM, set()) - updated if updated else ())


def _excuse_overflow(tensor: TensorResult) -> TensorResult:
    kind, found = tensor.id.kind, tensor.statistics
    is_gradient = kind.carries_loss_scale or kind in (Kind.MAIN_GRAD, Kind.GRAD_NORM)
    is_open = tensor.verdict in (Verdict.UNDECIDED, Verdict.NONFINITE)
    if not (is_gradient and is_open and found is not None):
        return tensor
    if not (found.nonfinite_reference or found.nonfinite_candidate):
        return tensor
    return replace(tensor, verdict=Verdict.PASS, finding=Finding.OVERFLOWED)


def excuse_gradients_reduced_elsewhere(
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
