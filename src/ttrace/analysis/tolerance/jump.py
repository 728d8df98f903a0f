"""Updates that jump: how far rounding can move one element of an updated parameter.

Adam's early steps are close to the sign of the gradient: an element whose gradient is rounding
noise around zero moves by the full learning rate in either direction. And an update near half a
unit in the last place of its parameter is rounded to none or to all of it. A single such element
can make up all of a tensor's error, so one perturbed run cannot tell how large it will be in the
next. Its bound can be read off the reference.
"""

from __future__ import annotations

import math

import torch

from ttrace.core.logical import LogicalTensor
from ttrace.trace.blocks import BlockReader, blocks
from ttrace.trace.dtypes import eps_of

# Chosen: noise beyond 6 times its root mean square has a probability of 1e-9 when normal.
_REACH = 6.0


def largest_jump(
    reader: BlockReader,
    *,
    before: LogicalTensor,
    gradient: LogicalTensor,
    after: LogicalTensor,
    gradient_noise: float,
) -> float:
    """The largest change of one element of `after` by a gradient within its noise (a norm).

    An update changes at most by the share by which its gradient does, and by no more than its sign.
    """
    reach = _REACH * gradient_noise / math.sqrt(max(1, gradient.volume))
    eps = eps_of(after.dtype)
    jump = 0.0
    for start, stop in blocks(after.shape):
        old, slope, new = (
            reader.read(tensor.pieces, tensor.shape, start, stop).to(torch.float32, copy=True)
            for tensor in (before, gradient, after)
        )
        share = (reach / slope.abs_()).nan_to_num_(nan=0.0).clamp_(max=2.0)
        update = old.sub_(new).abs_().mul_(share)
        jump = max(jump, float(update.max()), eps * float(new.abs_().max()))
    return jump
