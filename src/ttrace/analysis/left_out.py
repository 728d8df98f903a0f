"""Steps that one rank left out and another made, or the reference left out and the candidate made.

    step 0 overflowed; rank 0 leaves it out, rank 1 updates its parameters

Enters: verdicts, and who recorded what. Leaves: the same, where new parameters of such a step fail.
In a step that both runs left out on all ranks nothing is new (overflow.py). Of a rank that was not
recorded whole, or that updates by hand, nobody knows whether it made a step.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np

from ttrace.analysis.sources import Source
from ttrace.core.finding import Finding, Specifics
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.results import TensorResult, Verdict
from ttrace.core.rows import RecordRows

_GRADIENTS = frozenset({Kind.GRAD, Kind.ACCUMULATED_GRAD, Kind.REDUCED_GRAD, Kind.MAIN_GRAD})


@dataclass(frozen=True, slots=True, kw_only=True)
class _Step:
    """Who made a step of the optimizer, and who has gradients of it and made none."""

    updated: frozenset[int]
    idle: frozenset[int]


def not_left_out_by_all(
    results: Sequence[TensorResult], reference: Source, candidate: Source
) -> tuple[TensorResult, ...]:
    """The verdicts, with those of steps that only some ranks, or only the candidate, made."""
    if candidate.faults or reference.faults or candidate.updated_by_hand:
        return tuple(results)
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
