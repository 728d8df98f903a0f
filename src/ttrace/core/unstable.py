"""Updates that jump: how far rounding of a gradient may move the updated parameter.

Adam's early steps are close to the sign of the gradient: an element whose gradient is rounding
noise around zero moves by the full learning rate in either direction. A single such element can
make up all of a tensor's error, so one perturbed run cannot tell how large it will be in the next.
Its bound can be read off the reference: an update changes by at most the same share as its
gradient, and by no more than its sign.
"""

from __future__ import annotations

import math

import torch

from ttrace.core.blocks import BlockReader, blocks
from ttrace.core.logical import LogicalTensor

# Chosen: noise beyond 6 times its root mean square has a probability of 1e-9 when normal.
_REACH = 6.0


def update_bound(
    reader: BlockReader,
    *,
    before: LogicalTensor,
    gradient: LogicalTensor,
    after: LogicalTensor,
    gradient_noise: float,
) -> float:
    """The norm of the change that `gradient_noise` (a norm) can make to `after`."""
    reach = _REACH * gradient_noise / math.sqrt(max(1, gradient.volume))
    total = 0.0
    for start, stop in blocks(after.shape):
        old = reader.read(before.pieces, before.shape, start, stop).to(torch.float32, copy=True)
        slope = reader.read(gradient.pieces, gradient.shape, start, stop).to(
            torch.float32, copy=True
        )
        change = reader.read(after.pieces, after.shape, start, stop).to(torch.float32) - old
        share = (reach / slope.abs_()).nan_to_num_(nan=0.0).clamp_(max=2.0)
        total += float(change.mul_(share).double().square().sum())
    return math.sqrt(total)
