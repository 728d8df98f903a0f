"""The loss, the gradient norm and the distance of gradients of a run, from a comparison."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ttrace.core.formats import format_of
from ttrace.core.ids import Kind
from ttrace.core.results import CheckResult, TensorResult
from ttrace.core.statistics import Statistics
from ttrace.core.whatif import RunReading
from ttrace.errors import CannotCompare


class Beside(NamedTuple):
    """A reading, and what the reference has in its place."""

    reading: RunReading
    loss: float
    grad_norm: float | None
    gradient_norm: float
    loss_dtype: str
    loss_eps: float


def reading_of(result: CheckResult) -> Beside:
    """Of the last step; CannotCompare where one of the runs has no loss or no gradients."""
    last = max((tensor.id.step for tensor in result.tensors), default=0)
    of_step = [tensor for tensor in result.tensors if tensor.id.step == last]
    losses = list(_of(of_step, Kind.LOSS))
    gradients = [found for _, found in _of(of_step, Kind.MAIN_GRAD)]
    if not losses or not gradients or any(found.count != 1 for _, found in losses):
        raise CannotCompare(
            f"{result.candidate} and {result.reference} have no loss of one number and gradients "
            f"in step {last} that could be compared: see `ttrace check` of the two"
        )
    # Losses of 2.0 and 1.0 in the reference, of 2.1 and 1.0 here: the loss is 3.0, the gap 0.1.
    # Gradients that are off by norms of 3 and 4: their distance is 5.
    loss, gap = _sum([_scalar(found) for _, found in losses])
    norm, candidate_norm = _grad_norms(of_step)
    dtype = losses[0][0].dtype
    known = format_of(dtype)
    return Beside(
        reading=RunReading(
            loss=loss + gap,
            loss_gap=gap,
            gradient_distance=math.hypot(*(found.error_norm for found in gradients)),
            grad_norm=candidate_norm,
        ),
        loss=loss,
        grad_norm=norm,
        gradient_norm=math.hypot(*(found.reference_norm for found in gradients)),
        loss_dtype=dtype,
        loss_eps=0.0 if known is None else known.eps,
    )


def _grad_norms(tensors: Iterable[TensorResult]) -> tuple[float | None, float | None]:
    """The reference's gradient norm, and the candidate's; None where there is none."""
    pairs = (_scalar(found) for _, found in _of(tensors, Kind.GRAD_NORM) if found.count == 1)
    first = next(pairs, None)
    return (None, None) if first is None else (first[0], sum(first))


def _of(tensors: Iterable[TensorResult], kind: Kind) -> Iterator[tuple[TensorResult, Statistics]]:
    """Those that were compared."""
    for tensor in tensors:
        if tensor.id.kind is kind and tensor.statistics is not None:
            yield tensor, tensor.statistics


def _scalar(found: Statistics) -> tuple[float, float]:
    """The reference's number, and the candidate's less that.

    Statistics have magnitudes: of both signs, the reference has the one that the candidate's
    magnitude fits.
    """
    size, gap = found.reference_norm, found.error_sum
    signed = min((size, -size), key=lambda value: abs(abs(value + gap) - found.candidate_norm))
    return signed, gap


def _sum(pairs: Iterable[tuple[float, float]]) -> tuple[float, float]:
    """Of several losses, that of all."""
    values, gaps = zip(*pairs, strict=True)
    return sum(values), sum(gaps)
