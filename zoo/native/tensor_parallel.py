"""Tensor parallel by hand, as Megatron-LM does it: plain tensors, autograd functions, no DTensor.

All heads share one key and value head, whose projection every rank holds whole; each rank's
gradient of it is a part of the sum, which is made after backward. Column-parallel layers keep only
their own part of the input for backward, and gather it there.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_

import ttrace
from ttrace.core.blame import Blame, Phase, Stage
from ttrace.demo.model import RMSNorm
from zoo.native.collectives import CopyToRanks, SumOverRanks, gathered, own_part, summed
from zoo.native.job import native_bug
from zoo.native.workload import MAX_NORM, VOCAB, initialise, microbatches, summed_loss, total_count

_DIM, _HIDDEN, _HEAD, _LAYERS = 32, 64, 8, 2  # chosen small; heads and channels split over 2 ranks
_EPS = 1e-5  # Llama


class _Column(torch.autograd.Function):
    """x W^T with W split by rows; saves a part of x and gathers the rest in backward."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, wrong_layout: bool) -> Tensor:
        ctx.save_for_backward(own_part(x, -1), weight)
        ctx.wrong_layout = wrong_layout
        return x @ weight.T

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        part, weight = ctx.saved_tensors
        if ctx.wrong_layout:
            # One collective puts ranks side by side along the first dim: that is not the last.
            x = gathered(part, 0).reshape(*part.shape[:-1], -1)
        else:
            x = gathered(part, -1)
        grad = grads[0]
        return summed(grad @ weight), grad.flatten(0, -2).T @ x.flatten(0, -2), None


class _AddAgainReduced(torch.autograd.Function):
    """A residual plus a sum over ranks, whose backward takes the residual for a part as well."""

    @staticmethod
    def forward(ctx: Any, residual: Tensor, term: Tensor) -> Tensor:
        return residual + term

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return summed(grads[0]), grads[0]


class ColumnLinear(nn.Module):
    """Outputs split over ranks."""

    def __init__(self, inputs: int, outputs: int, *, wrong_layout: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.wrong_layout = wrong_layout

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, _Column.apply(x, self.weight, self.wrong_layout))


class RowLinear(nn.Module):
    """Inputs split over ranks; the bias is added once, after the sum."""

    def __init__(self, inputs: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(outputs, inputs))
        self.bias = nn.Parameter(torch.empty(outputs))

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, SumOverRanks.apply(x @ self.weight.T)) + self.bias


class SharedKeyAttention(nn.Module):
    """Multi-query attention: query heads split over ranks, one key and value head on all."""

    def __init__(self) -> None:
        super().__init__()
        self.wq = nn.Parameter(torch.empty(_DIM, _DIM))
        self.wkv = nn.Parameter(torch.empty(2 * _HEAD, _DIM))
        self.wo = nn.Parameter(torch.empty(_DIM, _DIM))

    def forward(self, x: Tensor) -> Tensor:
        x = cast(Tensor, CopyToRanks.apply(x))
        query = F.linear(x, self.wq).unflatten(-1, (-1, _HEAD)).transpose(1, 2)
        key, value = F.linear(x, self.wkv).unsqueeze(1).chunk(2, -1)
        scores = (query @ key.transpose(-1, -2)) * _HEAD**-0.5
        future = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).triu(1)
        mixed = scores.masked_fill(future, -torch.inf).softmax(-1) @ value
        return cast(Tensor, SumOverRanks.apply(mixed.transpose(1, 2).flatten(2) @ self.wo.T))


class Block(nn.Module):
    """Attention and MLP beside a residual."""

    def __init__(self, *, bugs: frozenset[str]) -> None:
        super().__init__()
        self.norm1, self.norm2 = RMSNorm(_DIM, eps=_EPS), RMSNorm(_DIM, eps=_EPS)
        self.attention = SharedKeyAttention()
        self.up = ColumnLinear(_DIM, _HIDDEN, wrong_layout="gathered-input-layout" in bugs)
        self.down = RowLinear(_HIDDEN, _DIM)
        self.reduces_again = "reduced-again" in bugs

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        term = self.down(F.gelu(self.up(self.norm2(x))))
        if self.reduces_again:
            return cast(Tensor, _AddAgainReduced.apply(x, term))
        return x + cast(Tensor, term)


class Model(nn.Module):
    """Embedding and head are whole on every rank."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, _DIM)
        # the mistakes inside a layer are made in one layer alone
        self.layers = nn.ModuleList(
            Block(bugs=bugs & planted) for planted in ({"gathered-input-layout"}, {"reduced-again"})
        )
        self.norm = RMSNorm(_DIM, eps=_EPS)
        self.head = nn.Linear(_DIM, VOCAB, bias=False)
        initialise(self.named_parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x)))


def is_split(name: str) -> bool:
    return name.endswith((".wq", ".wo", "up.weight", "down.weight"))


def split_parameters(model: nn.Module) -> None:
    """Cut every parameter that is split over ranks to this rank's part."""
    for name, parameter in model.named_parameters():
        if is_split(name):
            dim = 1 if name.endswith((".wo", "down.weight")) else 0
            parameter.data = own_part(parameter.data, dim)


def train(bugs: frozenset[str]) -> None:
    model = Model(bugs)
    split_parameters(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        for batch in microbatches():
            loss = summed_loss(model(batch.tokens), batch.labels) / total_count()
            loss.backward()
        unsummed = {0} if "shared-key-gradient" in bugs else set()
        for number, layer in enumerate(model.layers):
            if number not in unsummed:
                dist.all_reduce(cast(Block, layer).attention.wkv.grad)
        clip(model, bugs)
        optimizer.step()


def clip(model: nn.Module, bugs: frozenset[str]) -> None:
    """By the norm of the logical gradients: split ones add up over ranks, whole ones count once."""
    squares = torch.zeros(2)
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None
        squares[int(is_split(name))] += parameter.grad.square().sum()
    whole, split = squares[0], squares[1]
    if "whole-counted-by-each" in bugs:
        total = summed(whole + split)
    elif "split-counted-once" in bugs:
        total = whole + split
        dist.broadcast(total, 0)
    elif "norm-of-each-rank" in bugs:
        total = whole + split
    else:
        total = whole + summed(split)
    clip_grads_with_norm_(model.parameters(), MAX_NORM, total.sqrt())


_bug = partial(native_bug, train=train, layout="TP 2 by hand")

BUGS = (
    _bug(
        "gathered-input-layout",
        "a weight gradient uses an input gathered along the wrong dim",
        "TransformerEngine#530",
        Blame.of("layers.0.up", phase=Phase.WEIGHT_GRADIENT),
    ),
    _bug(
        "reduced-again",
        "the gradient of a residual is summed over tp although it is whole",
        "torchtitan#2106",
        Blame.of("layers.1", phase=Phase.BACKWARD),
    ),
    _bug(
        "whole-counted-by-each",
        "the norm counts gradients that every rank holds whole once for each rank",
        "ROCm TransformerEngine#715",
        Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),
    ),
    _bug(
        "split-counted-once",
        "the norm counts the parts of one tp rank only",
        "DeepSpeed#5411",
        Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),
    ),
    _bug(
        "norm-of-each-rank",
        "each tp rank clips by its own norm, so that replicas drift apart",
        "DeepSpeed#1801",
        Blame.at(Stage.GRADIENT_CLIPPING, Phase.GRADIENT_NORM),
    ),
    _bug(
        "shared-key-gradient",
        "the gradient of a projection shared by all heads is not summed over tp",
        "bigcode Megatron-LM#11",
        Blame.of("layers.0.attention", phase=Phase.GRADIENT_REDUCTION),
    ),
)
