"""Stage 5 of 7: localize, from an isolated run.

Enters: verdicts of a run in which every module started from the reference's values. Leaves: every
segment that is itself wrong. A segment lies between two overwritten points, so what is wrong at its
end was made wrong inside it; several bugs are all named, and consequences are not.

    wrong point (recorded before it was overwritten)    blamed
    output of a module                                  that module, forward
    input of a module                                   the code of its parent, forward
    gradient that reaches a module's output             the code of its parent, backward
    gradient that leaves a module's input               that module, backward
    local gradient of a parameter                       that module, weight gradient
    replicas of it disagree                             that module, gradient reduction
    later stages                                        the first of them that is wrong
"""

from __future__ import annotations

from collections.abc import Sequence

from ttrace.core.ids import Kind, display_module
from ttrace.core.results import Culprit, TensorResult, Verdict
from ttrace.localize import after_backward, before_forward, parent_of, why

_IN_MODULE = {
    Kind.OUTPUT: "forward",
    Kind.GRAD_INPUT: "backward",
    Kind.GRAD: "weight gradient",
}
_IN_PARENT = {Kind.INPUT: "forward", Kind.GRAD_OUTPUT: "backward"}


def localize_isolated(results: Sequence[TensorResult]) -> tuple[Culprit, ...]:
    """Every segment that is itself wrong, in execution order; empty when nothing failed."""
    start = before_forward(results)
    if start:
        return start
    segments: dict[tuple[str, str], list[TensorResult]] = {}
    for result in results:
        if result.verdict.is_failure and (place := _segment(result)) is not None:
            segments.setdefault(place, []).append(result)
    if any(part == "forward" for _, part in segments):
        # Nobody used an output: that its gradient is missing is what the wrong forward does.
        segments = {
            place: found
            for place, found in segments.items()
            if any(result.verdict is not Verdict.MISSING for result in found)
        }
    culprits = tuple(
        Culprit(
            where=where,
            part=part,
            reason=f"given the reference's values, {_points(found)}",
            evidence=tuple(result.id for result in found),
        )
        for (where, part), found in segments.items()
        # What a wrong forward does to the same segment's backward is its consequence.
        if part == "forward" or (where, "forward") not in segments
    )
    return culprits or after_backward(results)


def _segment(result: TensorResult) -> tuple[str, str] | None:
    kind, module = result.id.kind, result.id.module
    if kind is Kind.LOSS:
        return "loss", "forward"
    if kind is Kind.GRAD and result.verdict is Verdict.CONFLICT:
        return display_module(module), "gradient reduction"
    if kind in _IN_MODULE:
        return display_module(module), _IN_MODULE[kind]
    if kind in _IN_PARENT:
        if module == "":
            return ("loss" if kind is Kind.GRAD_OUTPUT else "model input"), _IN_PARENT[kind]
        return display_module(parent_of(module)), _IN_PARENT[kind]
    return None


def _points(found: Sequence[TensorResult]) -> str:
    first = found[0]
    name = f"{first.id.kind.value.replace('_', ' ')} of {display_module(first.id.module)}"
    more = f" (and {len(found) - 1} more points)" if len(found) > 1 else ""
    return f"{name} is wrong: {why(first)}{more}"
