"""Blame after a plain comparison: the first look that finds something names the culprits."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ttrace.analysis.localize.after_backward import AFTER_BACKWARD
from ttrace.analysis.localize.findings import (
    Consumers,
    by_module,
    caller_of,
    common_module,
    first_failed,
    is_everywhere,
    of_kind,
    outermost,
    why,
)
from ttrace.core.ids import Kind, display_module
from ttrace.core.results import Culprit, TensorResult, Verdict


def localize(results: Sequence[TensorResult], consumers: Consumers) -> tuple[Culprit, ...]:
    """The culprits at the frontier of the failures; empty when nothing failed."""
    for step in sorted({result.id.step for result in results}):
        of_step = [result for result in results if result.id.step == step]
        for look in (*_UNTIL_BACKWARD, *AFTER_BACKWARD):
            culprits = look(of_step, consumers)
            if culprits:
                return culprits
    return ()


def before_forward(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Other modules, parameters or data: nothing after them can be judged.

    Of the first step: a later one starts from what the one before it made.
    """
    first = min((result.id.step for result in results), default=0)
    of_first = [result for result in results if result.id.step == first]
    return _absent(of_first, {}) or _start(of_first, {})


def _absent(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
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
            where=module,
            part="missing",
            reason="the reference has it, the candidate has no tensor of it",
            evidence=tuple(result.id for result in verdicts[module][:3]),
        )
        for module in outer
    )


def _start(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    """Before anything ran: other parameters, other data."""
    parameters, failed = of_kind(results, Kind.PARAM)
    if failed and failed[0].id.step > 0:
        return by_module(
            failed, "parameter gather", "its last update passes; at the start of this step"
        )
    if failed:
        few = ", ".join(f"{display_module(r.id.module)}.{r.id.slot}" for r in failed[:3])
        return (
            Culprit(
                where=few if len(failed) <= 3 else common_module(failed) or "initial parameters",
                part="parameters",
                reason=f"{len(failed)} of {len(parameters)} parameters differ before the step "
                f"({few} first): load the same values in both runs",
                evidence=tuple(result.id for result in failed[:3]),
            ),
        )
    inputs = [
        r for r in results if r.id.kind is Kind.INPUT and r.id.module == "" and r.verdict.is_failure
    ]
    if inputs:
        return (
            Culprit(
                where="model input",
                part="inputs",
                reason="the candidate was given other data than the reference: " + why(inputs[0]),
                evidence=tuple(result.id for result in inputs),
            ),
        )
    return ()


def _forward(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    first = first_failed(results, lambda kind: kind in (Kind.INPUT, Kind.OUTPUT, Kind.LOSS))
    if first is None:
        return ()
    kind, module = first.id.kind, first.id.module
    if kind is Kind.LOSS:
        where, reason = "loss", "every module output passes, the loss does not"
    elif kind is Kind.OUTPUT:
        where, reason = display_module(module), "its output is the first wrong tensor"
    else:
        where = display_module(caller_of(module, {r.id.module for r in results}))
        reason = f"the input it makes for {module} is the first wrong tensor"
    return (
        Culprit(
            where=where, part="forward", reason=f"{reason}: {why(first)}", evidence=(first.id,)
        ),
    )


def _backward(results: Sequence[TensorResult], consumers: Consumers) -> tuple[Culprit, ...]:
    first = first_failed(results, lambda kind: kind.is_gradient_of_activation)
    if first is None:
        return ()
    id_ = first.id
    if id_.kind is Kind.GRAD_INPUT:
        where, reason = display_module(id_.module), "the gradient of its input is the first wrong"
    else:
        users = outermost(
            [user.module for user in consumers.get(id_, ()) if user.kind is Kind.GRAD_INPUT]
        )
        produced = f"the gradient it passes back to {display_module(id_.module)} is the first wrong"
        if users:
            where, reason = " or ".join(users), produced
        elif id_.module == "":
            where, reason = "loss", "the gradient of the model's output is the first wrong"
        else:
            caller = caller_of(id_.module, {r.id.module for r in results})
            where, reason = display_module(caller), produced
    return (
        Culprit(where=where, part="backward", reason=f"{reason}: {why(first)}", evidence=(id_,)),
    )


def _local_gradients(results: Sequence[TensorResult], _: Consumers) -> tuple[Culprit, ...]:
    gradients, failed = of_kind(results, Kind.GRAD)
    reason = "activations and their gradients pass"
    if failed and len(failed) > 1 and is_everywhere(failed, gradients):
        return (
            Culprit(
                where="backward",
                part="weight gradient",
                reason=f"{reason}, {len(failed)} of {len(gradients)} local gradients of parameters "
                "do not",
                evidence=tuple(result.id for result in failed[:3]),
            ),
        )
    # A gradient that claims to be whole on every rank but is not the same was never summed.
    unsummed = [result for result in failed if result.verdict is Verdict.CONFLICT]
    others = [result for result in failed if result.verdict is not Verdict.CONFLICT]
    return (
        *by_module(others, "weight gradient", reason),
        *by_module(unsummed, "gradient reduction", reason),
    )


_UNTIL_BACKWARD = (_absent, _start, _forward, _backward, _local_gradients)
