"""Tensor and sequence parallelism as Megatron-LM does it: plain tensors and autograd functions.

Between the layers every rank holds a part of the sequence; inside attention and MLP, a part of the
heads and channels. Parameters that work on a part of the sequence get a part of their gradient,
which is summed after backward. On one rank all of it is the identity.
"""

from __future__ import annotations

from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

from zoo.clean.architecture import VOCAB, Architecture, cross_entropy, tokens
from zoo.clean.case import Case
from zoo.clean.parts import head_of
from zoo.native.collectives import Gather, Scatter, SumOverRanks, gathered, own_part

_SPLIT = {"columns": 0, "rows": 1}  # dim of a weight that is cut


class _Whole(torch.autograd.Function):
    """The whole sequence for what all ranks then do alike: a gradient is cut, not summed."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor) -> Tensor:
        return gathered(tensor, 1)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        return own_part(grads[0], 1)


class ColumnLinear(nn.Module):
    """Outputs split over ranks; takes its part of the sequence, and computes on all of it."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.columns = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(cast(Tensor, Gather.apply(x, 1)), self.columns)


class RowLinear(nn.Module):
    """Inputs split over ranks; leaves its part of the sequence, where the bias is added."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.rows = nn.Parameter(torch.randn(outputs, inputs) * inputs**-0.5)
        self.bias = nn.Parameter(torch.randn(outputs) * 0.02)

    def forward(self, x: Tensor) -> Tensor:
        summed = cast(Tensor, SumOverRanks.apply(F.linear(x, self.rows)))
        return cast(Tensor, Scatter.apply(summed, 1)) + self.bias


class HandBlock(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.wq, self.wk, self.wv = (ColumnLinear(width, width) for _ in range(3))
        self.wo = RowLinear(width, width)
        self.up, self.down = ColumnLinear(width, 4 * width), RowLinear(4 * width, width)
        self.head = head_of(width)

    def forward(self, x: Tensor) -> Tensor:
        inside = self.norm1(x)
        query, key, value = (
            each(inside).unflatten(-1, (-1, self.head)).transpose(1, 2)
            for each in (self.wq, self.wk, self.wv)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.wo(mixed.transpose(1, 2).flatten(2))
        return x + cast(Tensor, self.down(F.gelu(self.up(self.norm2(x)))))


class HandModel(nn.Module):
    """Embedding and head are whole on every rank."""

    def __init__(self, case: Case) -> None:
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, case.width)
        self.blocks = nn.ModuleList(HandBlock(case.width) for _ in range(case.depth))
        self.norm = nn.LayerNorm(case.width)
        self.head = nn.Linear(case.width, VOCAB, bias=False)

    def forward(self, token_ids: Tensor, places: Tensor) -> Tensor:
        x = cast(Tensor, Scatter.apply(self.tokens(token_ids), 1))
        for block in self.blocks:
            x = block(x)
        return cast(Tensor, self.head(_Whole.apply(self.norm(x))))


def split_parameters(model: nn.Module) -> None:
    """Cut every parameter that is split over ranks to this rank's part."""
    for name, parameter in model.named_parameters():
        dim = _SPLIT.get(name.rpartition(".")[2])
        if dim is not None:
            parameter.data = own_part(parameter.data, dim)


def sum_shared_gradients(model: nn.Module) -> None:
    """Of norms and biases, which work on a part of the sequence."""
    if not isinstance(model, HandModel) or dist.get_world_size() == 1:
        return
    for name, parameter in model.named_parameters():
        if "norm" in name or name.endswith("bias"):
            dist.all_reduce(parameter.grad)


MEGATRON = Architecture(
    name="megatron",
    build=HandModel,
    batch=tokens,
    loss=cross_entropy,
    layouts=("tp2-by-hand", "accumulate2", "accumulate4"),
)
