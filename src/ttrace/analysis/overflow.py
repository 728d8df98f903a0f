"""Steps that overflowed, and were left out by both runs, as dynamic loss scaling does.

Which of their gradients are infinite is up to rounding, and to how often the loss was split: and
nobody uses them.

Enters: verdicts. Leaves: the same, where gradients of such a step that are not finite pass. A step
that either run updated from is no such step; nor is any of a run that never updates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from ttrace.core.finding import Finding
from ttrace.core.ids import Kind
from ttrace.core.results import TensorResult, Verdict


def left_out(tensors: Sequence[TensorResult]) -> tuple[TensorResult, ...]:
    steps = _without_update(tensors)
    return tuple(_excused(each) if each.id.step in steps else each for each in tensors)


def _without_update(tensors: Iterable[TensorResult]) -> frozenset[int]:
    """Steps after which no run has a new parameter, of runs that have them in others."""
    of: dict[Kind, set[int]] = {}
    for tensor in tensors:
        of.setdefault(tensor.id.kind, set()).add(tensor.id.step)
    updated = of.get(Kind.PARAM_AFTER, set())
    return frozenset(of.get(Kind.PARAM, set()) - updated if updated else ())


def _excused(tensor: TensorResult) -> TensorResult:
    kind, found = tensor.id.kind, tensor.statistics
    is_gradient = kind.carries_loss_scale or kind in (Kind.MAIN_GRAD, Kind.GRAD_NORM)
    is_open = tensor.verdict in (Verdict.UNDECIDED, Verdict.NONFINITE)
    if not (is_gradient and is_open and found is not None):
        return tensor
    if not (found.nonfinite_reference or found.nonfinite_candidate):
        return tensor
    return replace(tensor, verdict=Verdict.PASS, finding=Finding.OVERFLOWED)
