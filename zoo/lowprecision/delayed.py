"""Delayed scaling, as Transformer Engine does it: a scale comes from the maxima of earlier steps.

Enters: matrices, whose maxima are kept. Leaves: codes by the scale that is held; `advance`, after a
step, takes the maxima over all ranks into the history, and makes the next scale from that.
"""

from __future__ import annotations

import torch
import torch.distributed as dist
from torch import Tensor, nn

from zoo.lowprecision.formats import to_float8
from zoo.lowprecision.schemes import Operand, Quantised, float8_of, to_scale

HISTORY = 4  # steps; Transformer Engine has 1024, and then takes the largest
_FIRST_AMAX = 2.0  # chosen: nobody knows before a first step, in which a little saturates


class Delayed(nn.Module):
    """The state of one layer, for each of its operands."""

    amax: Tensor
    history: Tensor
    scale: Tensor

    def __init__(self) -> None:
        super().__init__()
        count = len(Operand)
        first = torch.full((count,), _FIRST_AMAX)
        dtypes = [float8_of(operand) for operand in Operand]
        self.register_buffer("amax", torch.zeros(count))
        self.register_buffer("history", torch.zeros(HISTORY, count))
        self.register_buffer("scale", torch.stack([*map(to_scale, first, dtypes)]))

    def quantise(self, x: Tensor, operand: Operand, split: int | None) -> Quantised:
        place = list(Operand).index(operand)
        # `amax` and `scale` are read by later passes of the same step: only `advance` changes both
        self.amax[place] = torch.maximum(self.amax[place], x.abs().amax().float())
        scale = self.scale[place].clone().reshape(1, 1)
        codes = to_float8(x.float() / scale, float8_of(operand))
        return Quantised(codes=codes, scales=scale, block=(x.shape[0], x.shape[1]))

    @torch.no_grad()
    def advance(self) -> None:
        """After a step."""
        dist.all_reduce(self.amax, dist.ReduceOp.MAX)
        self.history.copy_(torch.cat([self.amax[None], self.history[:-1]]))
        for place, operand in enumerate(Operand):
            self.scale[place] = to_scale(self.history[:, place].amax(), float8_of(operand))
        self.amax.zero_()


def advance(model: nn.Module) -> None:
    for module in model.modules():
        if isinstance(module, Delayed):
            module.advance()
