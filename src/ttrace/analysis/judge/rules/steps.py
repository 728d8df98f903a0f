"""Steps of the optimizer: that some ranks left out, and that both runs did.

    partial     step 0 overflowed; rank 0 leaves it out, rank 1 updates its parameters. Or the
                reference left it out, and the candidate made it. New parameters of it fail.
    overflow    a step that both runs left out, as dynamic loss scaling does: which of its gradients
                are infinite is up to rounding, and to how often the loss was split, and nobody uses
                them. They pass.
    elsewhere   a step by hand reduces gradients into a flat buffer, say, from which it updates:
                those that only their own rank has are harmless if the update is right, although
                the error that they make would have shown in it.

A step that either run updated from is not left out; nor is any of a run that never updates. Of a
rank that was not recorded whole, or that updates by hand, nobody knows whether it made a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from ttrace.analysis.judge.case_file import CaseFile
from ttrace.analysis.judge.rules.base import Rule
from ttrace.analysis.judge.rulings import Accusation, Excuse, Standing, Weight
from ttrace.analysis.same_step import distance
from ttrace.analysis.sources import Source
from ttrace.core.finding import Finding, Specifics, Topic
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.rows import RecordRows
from ttrace.core.statistics import Statistic

_GRADIENTS = frozenset({Kind.GRAD, Kind.ACCUMULATED_GRAD, Kind.REDUCED_GRAD, Kind.MAIN_GRAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Who made a step of the optimizer, and who has gradients of it and made none."""

    updated: frozenset[int]
    idle: frozenset[int]


class PartialSteps(Rule):
    """Steps that only some ranks, or only the candidate, made."""

    def accuse(self, case: CaseFile, found: Sequence[Any]) -> Iterable[Accusation]:
        reference, candidate = case.sources.reference, case.sources.candidate
        if candidate.faults or reference.faults or candidate.updated_by_hand:
            return
        # Runs that update in step 1. Who has gradients of step 0 and no update (idle), who has one:
        #     reference idle {0}, updated {}     candidate idle {0}, updated {1}    rank 1 is wrong
        #     reference idle {}, updated {0}     candidate idle {0}, updated {1}    rank 0 is wrong
        #     reference idle {0}, updated {}     candidate idle {}, updated {0, 1}  all are wrong
        expected = _steps(reference)
        updates = any(step.updated for step in expected.values())
        for number, step in _steps(candidate).items():
            of_reference = expected.get(number)
            if not step.updated or of_reference is None:
                continue
            is_left_out = updates and bool(of_reference.idle) and not of_reference.updated
            if step.idle:
                yield from _by_some(case, number, step, is_left_out=is_left_out)
            elif is_left_out:
                for id_ in _new_parameters(case, number):
                    yield _accusation(id_, Verdict.MISMATCH, Finding.UPDATED_ALONE)


def _by_some(
    case: CaseFile, number: int, step: _Step, *, is_left_out: bool
) -> Iterator[Accusation]:
    """New parameters of which a rank that made no step holds a part or a replica."""
    held = case.sources.candidate.trace.by_id()
    ranks = tuple(sorted(step.updated if is_left_out else step.idle))
    specifics = Specifics(ranks=tuple(sorted(step.updated)), other_ranks=tuple(sorted(step.idle)))
    for id_ in _new_parameters(case, number):
        before = held.get(replace(id_, kind=Kind.PARAM))
        if before is not None and _ranks_of([before]) & step.idle:
            accused = _accusation(id_, Verdict.CONFLICT, Finding.UPDATED_BY_SOME)
            yield replace(accused, ranks=ranks, specifics=specifics)


def _accusation(id_: TensorId, verdict: Verdict, finding: Finding) -> Accusation:
    return Accusation(id=id_, verdict=verdict, weight=Weight.NOT_BY_ALL, finding=finding)


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


def _new_parameters(case: CaseFile, step: int) -> Iterator[TensorId]:
    is_new = _is_of(step, frozenset({Kind.PARAM_AFTER}))
    return (id_ for id_ in case.exhibits if is_new(id_) and not id_.slot.endswith(MASTER))


class Overflow(Rule):
    """Gradients of a step that both runs left out."""

    def excuse(self, case: CaseFile, standing: Standing) -> Iterable[Excuse]:
        steps = _without_update(standing)
        for id_, result in standing.items():
            kind, found = id_.kind, result.statistics
            is_gradient = kind.carries_loss_scale or kind in (Kind.MAIN_GRAD, Kind.GRAD_NORM)
            if id_.step not in steps or not is_gradient or found is None:
                continue
            if found.nonfinite_reference or found.nonfinite_candidate:
                yield Excuse(
                    id=id_,
                    verdict=Verdict.PASS,
                    over=frozenset({Verdict.UNDECIDED, Verdict.NONFINITE}),
                    finding=Finding.OVERFLOWED,
                )


def _without_update(ids: Iterable[TensorId]) -> frozenset[int]:
    """Steps after which no run has a new parameter, of runs that have them in others."""
    of: dict[Kind, set[int]] = {}
    for id_ in ids:
        of.setdefault(id_.kind, set()).add(id_.step)
    updated = of.get(Kind.PARAM_AFTER, set())
    return frozenset(of.get(Kind.PARAM, set()) - updated if updated else ())


class ReducedElsewhere(Rule):
    """Gradients that only their own rank has, where a step by hand does not update from them."""

    def excuse(self, case: CaseFile, standing: Standing) -> Iterable[Excuse]:
        if not case.sources.candidate.updated_by_hand:
            return
        for id_, result in standing.items():
            is_own = id_.kind is Kind.MAIN_GRAD and result.verdict is Verdict.CONFLICT
            if is_own and _would_show(case, result, standing):
                yield Excuse(
                    id=id_,
                    verdict=Verdict.HARMLESS,
                    over=frozenset({Verdict.CONFLICT}),
                    topic=Topic.REDUCED_ELSEWHERE,
                )


def _would_show(case: CaseFile, gradient: TensorResult, standing: Standing) -> bool:
    """Whether an update from these gradients would have been seen to be another, and is not."""
    before, after = (replace(gradient.id, kind=kind) for kind in (Kind.PARAM, Kind.PARAM_AFTER))
    updated, pairs = standing.get(after), case.compared.pairs
    if updated is None or updated.verdict is not Verdict.PASS or gradient.specifics is None:
        return False
    allowed = [j.allowed for j in updated.judgements if j.reading.statistic is Statistic.NORM]
    if not allowed or before not in pairs or after not in pairs:
        return False
    size = distance(case.sources.reference, pairs[before][0], pairs[after][0])
    return size * gradient.specifics.relative_error > max(allowed)
