"""Blame after a plain comparison: the first look that finds something names the culprits."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Sequence

from ttrace.analysis.localize.after_backward import AFTER_BACKWARD
from ttrace.analysis.localize.findings import (
    SHOWN,
    Consumers,
    begun,
    blame_together,
    by_module,
    by_strength,
    caller_of,
    common_module,
    first_failed,
    is_everywhere,
    of_kind,
    outermost,
)
from ttrace.core.blame import Blame, Culprit, Phase, Reason, Stage
from ttrace.core.finding import Finding
from ttrace.core.ids import Kind
from ttrace.core.results import TensorResult, Verdict


def localize(results: Sequence[TensorResult], consumers: Consumers) -> tuple[Culprit, ...]:
    """The culprits at the frontier of the failures, strongest first; empty when nothing failed."""
    passed = let_pass(results)
    backward = functools.partial(_backward, consumers=consumers)
    looks = (_absent, _start, _forward, backward, _local_gradients, *AFTER_BACKWARD)
    for step in sorted({result.id.step for result in results}):
        of_step = [result for result in results if result.id.step == step]
        for look in (_by_then,) if step in passed else looks:
            culprits = look(of_step)
            if culprits:
                return by_strength(culprits, of_step)
    return ()


def before_forward(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Other modules, parameters or data: nothing after them can be judged.

    Of the first step: a later one starts from what the one before it made.
    """
    first = min((result.id.step for result in results), default=0)
    of_first = [result for result in results if result.id.step == first]
    return _absent(of_first) or _start(of_first)


def let_pass(results: Sequence[TensorResult]) -> set[int]:
    """Steps of which only what they left behind was recorded: those before the first start."""
    starts = [result.id.step for result in results if result.id.kind is Kind.PARAM]
    return {result.id.step for result in results if starts and result.id.step < min(starts)}


def _by_then(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    failed = [result for result in results if result.verdict.is_failure]
    blame = Blame.at(Stage.INITIAL_PARAMETERS, Phase.PARAMETERS)
    return (blame_together(blame, Reason.OTHER_BY_THEN, failed, results),) if failed else ()


def _absent(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Modules of which the candidate has nothing at all: dropped layers, other names."""
    verdicts: dict[str, list[TensorResult]] = defaultdict(list)
    for result in results:
        verdicts[result.id.module].append(result)
    absent = [
        module
        for module, found in verdicts.items()
        if module and all(result.verdict is Verdict.MISSING for result in found)
    ]
    outer = outermost(absent)
    return tuple(
        Culprit(
            blame=Blame.of(module, phase=Phase.MISSING),
            reason=Reason.NO_TENSOR_OF_IT,
            evidence=tuple(result.id for result in verdicts[module][:SHOWN]),
        )
        for module in outer
    )


def _start(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Before anything ran: other parameters, other data."""
    parameters, failed = of_kind(results, Kind.PARAM)
    if failed and failed[0].id.step > 0:
        return by_module(failed, Phase.PARAMETER_GATHER, Reason.GATHERED_PARAMETER)
    if failed:
        reason = Reason.OTHER_SPLIT if _are_parts(failed) else Reason.OTHER_PARAMETERS
        return (blame_together(_of_parameters(failed), reason, failed, parameters),)
    given, wrong = of_kind(results, Kind.INPUT)
    first = _first_model(given)
    inputs = tuple(result.id for result in wrong if result.id.module == first)
    blame = Blame.at(Stage.MODEL_INPUT, Phase.INPUTS)
    return (Culprit(blame=blame, reason=Reason.OTHER_DATA, evidence=inputs),) if inputs else ()


def _are_parts(failed: Sequence[TensorResult]) -> bool:
    """Whether all that differ are held in parts whose places were inferred, or do not fit."""
    return all(
        result.finding is Finding.TAKEN_AS_CHUNKS or result.verdict is Verdict.SHAPE
        for result in failed
    )


def _first_model(given: Sequence[TensorResult]) -> str:
    """The model that gets the data: the only one, or of several the one that is called first."""
    if any(result.id.module == "" for result in given):
        return ""
    return min(given, key=lambda result: result.order).id.module if given else ""


def _of_parameters(failed: Sequence[TensorResult]) -> Blame:
    """The modules of a few, the module that holds all of many, or all parameters."""
    if len(failed) <= SHOWN:
        modules = dict.fromkeys(result.id.module for result in failed)
        return Blame.of(*modules, phase=Phase.PARAMETERS)
    common = common_module(failed)
    if not common:
        return Blame.at(Stage.INITIAL_PARAMETERS, Phase.PARAMETERS)
    return Blame.of(common, phase=Phase.PARAMETERS)


def _forward(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    first = first_failed(results, lambda kind: kind in (Kind.INPUT, Kind.OUTPUT, Kind.LOSS))
    if first is None:
        return ()
    kind, module = first.id.kind, first.id.module
    if kind is Kind.LOSS:
        blame, reason = Blame.at(Stage.LOSS, Phase.FORWARD), Reason.LOSS_ALONE
    elif kind is Kind.OUTPUT:
        blame, reason = Blame.of(module, phase=Phase.FORWARD), Reason.FIRST_WRONG_OUTPUT
    else:
        caller = caller_of(module, {r.id.module for r in results}, begun(results))
        blame, reason = Blame.of(caller, phase=Phase.FORWARD), Reason.INPUT_FOR_CHILD
    return (Culprit(blame=blame, reason=reason, evidence=(first.id,)),)


def _backward(results: Sequence[TensorResult], consumers: Consumers) -> tuple[Culprit, ...]:
    first = first_failed(results, lambda kind: kind.is_gradient_of_activation)
    if first is None:
        return ()
    id_ = first.id
    reason = Reason.GRADIENT_PASSED_BACK
    users = outermost(
        [user.module for user in consumers.get(id_, ()) if user.kind is Kind.GRAD_INPUT]
    )
    if id_.kind is Kind.GRAD_INPUT:
        blame, reason = Blame.of(id_.module, phase=Phase.BACKWARD), Reason.GRADIENT_OF_INPUT
    elif users:
        blame = Blame.of(*users, phase=Phase.BACKWARD)
    elif id_.module == "":
        blame, reason = Blame.at(Stage.LOSS, Phase.BACKWARD), Reason.GRADIENT_OF_MODEL_OUTPUT
    else:
        caller = caller_of(id_.module, {r.id.module for r in results}, begun(results))
        blame = Blame.of(caller, phase=Phase.BACKWARD)
    return (Culprit(blame=blame, reason=reason, evidence=(id_,)),)


def _local_gradients(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    gradients, failed = of_kind(results, Kind.GRAD)
    if len(failed) > 1 and is_everywhere(failed, gradients):
        blame = Blame.at(Stage.BACKWARD, Phase.WEIGHT_GRADIENT)
        return (blame_together(blame, Reason.ALL_LOCAL_GRADIENTS, failed, gradients),)
    # A gradient that claims to be whole on every rank but is not the same was never summed.
    unsummed = [result for result in failed if result.verdict is Verdict.CONFLICT]
    others = [result for result in failed if result.verdict is not Verdict.CONFLICT]
    return (
        *by_module(others, Phase.WEIGHT_GRADIENT, Reason.LOCAL_GRADIENT),
        *by_module(unsummed, Phase.GRADIENT_REDUCTION, Reason.LOCAL_GRADIENT),
    )
