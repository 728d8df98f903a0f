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

import torch

from ttrace.core.logical import LogicalTensor
from ttrace.trace.blocks import BlockReader, blocks
from ttrace.trace.dtypes import eps_of

# Chosen: noise beyond 6 times its root mean square has a probability of 1e-9 when normal.
_REACH = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """By how much one element may move at most, and the norm of what all of them do."""

    element: float
    norm: float


NO_JUMP = Jump(element=0.0, norm=0.0)


def jumps(
    reader: BlockReader,
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
