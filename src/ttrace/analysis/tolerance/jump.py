"""Updates that jump: how far rounding can move an updated parameter, and one element of it.

Adam's early steps are close to the sign of the gradient: an element whose gradient is rounding
noise around zero moves by the full learning rate in either direction. And an update near half a
unit in the last place of its parameter is rounded to none or to all of it. A single such element
can make up all of a tensor's error, so one perturbed run cannot tell how large it will be in the
next. Its bound can be read off the reference, and so can what the noise of the gradient does to the
whole update.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch

from ttrace.core.logical import LogicalTensor
from ttrace.measure.cells import norm_of
from ttrace.measure.fingerprint import SMALLEST_MAGNITUDES
from ttrace.trace.blocks import BlockReader, blocks
from ttrace.trace.cell_places import CellsDoNotFit
from ttrace.trace.dtypes import eps_of
from ttrace.trace.sketches import SketchReader, common_sizes, is_sketched
from ttrace.trace.spans import SpanReader

# Chosen: noise beyond 6 times its root mean square has a probability of 1e-9 when normal.
_REACH = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """By how much one element may move at most, and the norm of what all of them do."""

    element: float
    norm: float


NO_JUMP = Jump(element=0.0, norm=0.0)


def jumps(
    spans: SpanReader,
    *,
    before: LogicalTensor,
    gradient: LogicalTensor,
    after: LogicalTensor,
    gradient_noise: float,
) -> Jump:
    """What a gradient within its noise (a norm) does to `after`.

    An update changes at most by the share by which its gradient does, and by no more than its sign.
    """
    usual = gradient_noise / math.sqrt(max(1, gradient.volume))
    eps = eps_of(after.dtype)
    if is_sketched(before, gradient, after):
        return _sketched_jumps(SketchReader(spans), before, gradient, after, usual)
    reader = BlockReader(spans)
    element = squares = 0.0
    for start, stop in blocks(after.shape):
        old, slope, new = (
            reader.read(tensor.pieces, tensor.shape, start, stop).to(torch.float32, copy=True)
            for tensor in (before, gradient, after)
        )
        share = (usual / slope.abs_()).nan_to_num_(nan=0.0)
        update = old.sub_(new).abs_()
        reached = update * (_REACH * share).clamp_(max=2.0)
        element = max(element, float(reached.max()), eps * float(new.abs_().max()))
        squares += float(update.mul_(share.clamp_(max=2.0)).square_().sum(dtype=torch.float64))
    return Jump(element=element, norm=math.sqrt(squares))


def _sketched_jumps(
    reader: SketchReader,
    before: LogicalTensor,
    gradient: LogicalTensor,
    after: LogicalTensor,
    usual: float,
) -> Jump:
    """The same of fingerprints, as if all elements that have a gradient were updated alike.

    That is what Adam does in its early steps. How many gradients are how small was counted.
    """
    sizes = common_sizes(before, gradient, after)
    try:
        old, slope, new = (
            reader.read(tensor.pieces, tensor.shape, sizes) for tensor in (before, gradient, after)
        )
    except CellsDoNotFit:
        return NO_JUMP
    update = norm_of(new.sums - old.sums, dims=len(sizes))
    rounding = eps_of(after.dtype) * (new.peak or 0.0)
    if slope.exponents is None or not math.isfinite(update):
        return Jump(element=max(update, rounding), norm=update)
    counts = slope.exponents[1:].astype(np.float64)  # the first are zeros, and next to nothing
    if not counts.sum():
        return Jump(element=rounding, norm=0.0)
    each = update / math.sqrt(counts.sum())
    smallest = SMALLEST_MAGNITUDES[1:]
    reached = each * np.minimum(_REACH * usual / smallest, 2.0)
    # Magnitudes between m and 16 m, all alike: the mean of their inverse squares is 1 / (4 m)^2.
    moved = each * np.minimum(usual / (4 * smallest), 2.0)
    return Jump(
        element=max(float(reached[counts > 0].max()), rounding),
        norm=math.sqrt(float((counts * moved**2).sum())),
    )
