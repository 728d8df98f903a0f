"""Stage 6 of 8: localize, from an isolated run.

Enters: verdicts of a run in which every module, and every stage after backward, started from the
reference's values. Leaves: every segment that is itself wrong. A segment lies between two
overwritten points, so what is wrong at its end was made wrong inside it; several bugs are all
named, and consequences are not. Every step starts from the reference's parameters and state, so
each is judged by itself.

    wrong point (recorded before it was overwritten)    blamed
    parameter at the start of a later step              the gather of that parameter
    output of a module                                  that module, forward
    input of a module                                   the code of its parent, forward
    gradient that reaches a module's output             the code of its parent, backward
    gradient that leaves a module's input               that module, backward
    local gradient of a parameter                       that module, weight gradient
    replicas of it disagree                             that module, gradient reduction
    gradient given to the reduction, local one right    the accumulation of gradients
    reduced or main gradient, local one right           the reduction or accumulation of gradients
    gradient norm that is not that of the gradients     gradient clipping
    clipped gradient                                    gradient clipping
    state of the optimizer, or new parameter            the optimizer step
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import replace

from ttrace.analysis.localize.after_backward import stages_after_backward
from ttrace.analysis.localize.findings import (
    begun,
    by_strength,
    caller_of,
    is_left_out,
    parent_of,
)
from ttrace.analysis.localize.plain import before_forward, let_pass
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import TensorResult, Verdict

_IN_MODULE = {
    Kind.OUTPUT: Phase.FORWARD,
    Kind.GRAD_INPUT: Phase.BACKWARD,
    Kind.GRAD: Phase.WEIGHT_GRADIENT,
}
_OF_PARAMETER = frozenset(
    {
        *(Kind.ACCUMULATED_GRAD, Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD),
        *(Kind.OPTIMIZER, Kind.PARAM_AFTER, Kind.PARAM),
    }
)
# Chosen: a forward that is off by a little makes a backward that is off by about as much, or, where
# it flips a ReLU, by some percent; no mistake of the bugs that were tried makes it this far larger.
_LARGE, _FAR_LARGER = 0.1, 100.0
_IN_PARENT = {Kind.INPUT: Phase.FORWARD, Kind.GRAD_OUTPUT: Phase.BACKWARD}


def localize_isolated(
    results: Sequence[TensorResult],
    *,
    unfired: Set[str] = frozenset(),
    displaced: Set[TensorId] = frozenset(),
    by_hand: bool = False,
    modules: Set[str] | None = None,
) -> tuple[Culprit, ...]:
    """Every segment that is itself wrong, by the strength of its evidence, then as executed.

    `unfired` are ids of gradients that were waited for in vain. `displaced` are ids inside experts
    to which other tokens came: no gradient of their parameters can be that of the reference.
    `by_hand`: nobody knows when gradients become updates, so those are of the run's own gradients.
    `modules` are those at whose boundaries values were given, where that is not all: they are
    blamed for what is inside them.
    """
    passed = let_pass(results)  # the first recorded step was given what they leave behind
    results = [result for result in results if result.id.step not in passed]
    start = before_forward(results)
    if start:
        return start
    steps: dict[int, list[TensorResult]] = {}
    for result in results:
        steps.setdefault(result.id.step, []).append(result)
    apart = [result.id.step for result in results if is_left_out(result)]
    found = [
        culprit
        for step in sorted(steps)
        if step <= min(apart, default=step)  # the runs' loss scales go their own ways then
        for culprit in _of_step(steps[step], unfired, displaced, modules, by_hand=by_hand)
    ]
    return _merged(by_strength(found, results))


def _of_step(
    results: Sequence[TensorResult],
    unfired: Set[str],
    displaced: Set[TensorId],
    modules: Set[str] | None,
    *,
    by_hand: bool,
) -> tuple[Culprit, ...]:
    # Wrong at wq: its output by 0.2, the gradients of its input and of its weight by 0.3. Segments:
    #     wq forward     a culprit
    #     wq backward    with the weight's gradient; 0.3 follows from 0.2, so it is none. By 25, 125
    #                    times as far, it would be a second one
    cut, unreached = _cut_graph(results, unfired)
    segments = _segments(results, unreached, displaced, modules)
    if Blame.at(Stage.LOSS, Phase.FORWARD) in segments and any(r.id.asked for r in results):
        # A loss of gradients leads back into modules past their outputs, where nothing is given.
        segments = {blame: found for blame, found in segments.items() if not _is_back(blame)}
    if any(blame.phase is Phase.FORWARD for blame in segments):
        cut = ()  # nobody used an output: what the wrong forward does
    for blame in [blame for blame in segments if blame.phase is Phase.BACKWARD]:
        # Both come from the gradient inside the module: one place, not two.
        segments[blame] += segments.pop(replace(blame, phase=Phase.WEIGHT_GRADIENT), [])
    wrong = {module for blame in segments for module in blame.modules}
    consequences = _consequences(results, wrong, modules)
    consequences |= _updates(results) if by_hand else set()
    later = stages_after_backward(results, consequences | unreached)
    return (*_culprits_of(segments), *cut, *later)


def _culprits_of(segments: Mapping[Blame, Sequence[TensorResult]]) -> Iterator[Culprit]:
    """Of every segment that is no consequence of its own forward."""
    for blame, found in segments.items():
        if not _follows(found, segments.get(replace(blame, phase=Phase.FORWARD), found)):
            evidence = tuple(result.id for result in found)
            yield Culprit(blame=blame, reason=Reason.GIVEN_REFERENCE_VALUES, evidence=evidence)


def _is_back(blame: Blame) -> bool:
    return bool(blame.modules) and blame.phase in (Phase.BACKWARD, Phase.WEIGHT_GRADIENT)


def _follows(found: Sequence[TensorResult], forward: Sequence[TensorResult]) -> bool:
    """Whether what is wrong in backward is a consequence of the same segment's wrong forward.

    A loss is one number: how far it is off says nothing of its gradient.
    """
    if found is forward:
        return False
    if any(result.id.kind is Kind.LOSS for result in forward):
        return True
    error = _largest_error(found)
    return error < _LARGE or error < _FAR_LARGER * _largest_error(forward)


def _largest_error(results: Sequence[TensorResult]) -> float:
    """Relative to the reference; without bound where nothing could be measured."""
    return max(
        math.inf if result.statistics is None else result.statistics.relative_error
        for result in results
    )


def _segments(
    results: Sequence[TensorResult],
    unreached: Set[TensorId],
    displaced: Set[TensorId],
    modules: Set[str] | None,
) -> dict[Blame, list[TensorResult]]:
    """The wrong points of every segment."""
    known = {result.id.module for result in results if result.id.kind.is_activation}
    starts = begun(results)
    segments: dict[Blame, list[TensorResult]] = {}
    for result in results:
        failed = result.verdict.is_failure and result.id not in unreached
        failed = failed and not (result.id.kind is Kind.GRAD and result.id in displaced)
        if failed and (blame := _segment(result, known, starts, modules)) is not None:
            segments.setdefault(blame, []).append(result)
    return segments


def _cut_graph(
    results: Sequence[TensorResult], unfired: Set[str]
) -> tuple[tuple[Culprit, ...], set[TensorId]]:
    """Where a tensor lost its way back, and all that backward therefore never reached."""
    missing = [
        result
        for result in results
        if result.verdict is Verdict.MISSING
        and (result.id.kind.is_gradient_of_activation or result.id.kind is Kind.GRAD)
    ]
    if not missing:
        return (), set()
    # What ran first of those without gradient: attention.wq is detached from its input x.
    #     grad_input of wq, never waited for    x needs none: cut off before wq, in attention
    #     grad_input of wq, waited for in vain  cut off in wq itself
    #     gradients and updates of wq's weight  were never reached, and are not blamed
    first = min(missing, key=lambda result: result.order)
    module = first.id.module
    # An input that needs no gradient was cut off before it came to the module.
    before = first.id.kind is Kind.GRAD_INPUT and str(first.id) not in unfired
    parameters = {(r.id.module, r.id.slot) for r in missing if r.id.kind is Kind.GRAD}
    unreached = {result.id for result in missing} | {
        result.id
        for result in results
        if result.id.kind in _OF_PARAMETER
        and (result.id.module, result.id.slot.partition(".")[0]) in parameters
    }
    culprit = Culprit(
        blame=Blame.of(parent_of(module) if before else module, phase=Phase.BACKWARD),
        reason=Reason.CUT_OFF_FROM_AUTOGRAD,
        evidence=(first.id,),
        count=len(missing),
    )
    return (culprit,), unreached


def _isolated(module: str, modules: Set[str] | None) -> str:
    """The module itself, or the innermost around it that was given values at its boundary."""
    return module if modules is None or module in modules else caller_of(module, modules)


def _consequences(
    results: Sequence[TensorResult], wrong: set[str], modules: Set[str] | None
) -> set[TensorId]:
    """Local gradients are not overwritten, so a wrong one makes a wrong main gradient."""
    local = {(r.id.module, r.id.slot): r for r in results if r.id.kind is Kind.GRAD}

    def is_consequence(result: TensorResult) -> bool:
        in_wrong_module = _isolated(result.id.module, modules) in wrong
        if result.id.kind in (Kind.ACCUMULATED_GRAD, Kind.REDUCED_GRAD, Kind.MAIN_GRAD):
            source = local.get((result.id.module, result.id.slot))
            return in_wrong_module if source is None else source.verdict.is_failure
        return result.id.kind is Kind.BUFFER and in_wrong_module

    return {result.id for result in results if is_consequence(result)}


def _updates(results: Sequence[TensorResult]) -> set[TensorId]:
    """Updates that were made of wrong gradients."""
    gradients = (Kind.GRAD, Kind.MAIN_GRAD)
    wrong = {
        (result.id.module, result.id.slot)
        for result in results
        if result.id.kind in gradients and result.verdict.is_failure
    }
    return {
        result.id
        for result in results
        if result.id.kind is Kind.PARAM_AFTER and (result.id.module, result.id.slot) in wrong
    }


def _merged(found: Sequence[Culprit]) -> tuple[Culprit, ...]:
    """One culprit for what is wrong in several steps, by the strongest evidence of it."""
    strongest: dict[Blame, Culprit] = {}
    steps: dict[Blame, set[int]] = {}
    for culprit in found:
        strongest.setdefault(culprit.blame, culprit)
        steps.setdefault(culprit.blame, set()).update(id_.step for id_ in culprit.evidence)
    return tuple(
        replace(culprit, steps=tuple(sorted(steps[blame]))) for blame, culprit in strongest.items()
    )


def _segment(
    result: TensorResult, known: Set[str], starts: Mapping[str, int], modules: Set[str] | None
) -> Blame | None:
    kind, module = result.id.kind, result.id.module
    if kind is Kind.LOSS:
        return Blame.at(Stage.LOSS, Phase.FORWARD)
    if kind is Kind.PARAM:
        return Blame.of(module, phase=Phase.PARAMETER_GATHER)
    if kind is Kind.GRAD and result.verdict is Verdict.CONFLICT:
        return Blame.of(module, phase=Phase.GRADIENT_REDUCTION)
    if kind in _IN_MODULE:
        return Blame.of(_isolated(module, modules), phase=_IN_MODULE[kind])
    if kind in _IN_PARENT:
        caller = caller_of(module, known, starts)
        if module == "" or (caller == "" and "" not in known):  # one of several models
            stage = Stage.LOSS if kind is Kind.GRAD_OUTPUT else Stage.MODEL_INPUT
            return Blame.at(stage, _IN_PARENT[kind])
        return Blame.of(caller, phase=_IN_PARENT[kind])
    return None
