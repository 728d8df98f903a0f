"""Expert parallel: experts split over the data-parallel ranks, whose tokens all of them see.

Tokens are gathered, each rank's experts add their part, and every rank takes its own tokens back.
So an expert's local gradient holds the tokens of all ranks: it needs no sum, but the same division
as the averaged gradients of everything else.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard, distribute_tensor
from torch.nn import functional as F
from torch.nn.utils import clip_grads_with_norm_

import ttrace
from ttrace.core.blame import Blame, Phase
from ttrace.demo.model import RMSNorm
from zoo.native.collectives import Gather, Scatter, SumOverRanks, own_part, summed
from zoo.native.job import native_bug
from zoo.native.workload import (
    MAX_NORM,
    VOCAB,
    initialise,
    is_parallel,
    microbatches,
    summed_loss,
    total_count,
)

_DIM, _HIDDEN, _EXPERTS = 32, 64, 4  # chosen small; two experts on each of 2 ranks
_EPS = 1e-5  # Llama


class Experts(nn.Module):
    """Takes this rank's tokens and their weights for all experts; gives this rank's tokens back."""

    def __init__(self, *, confuses_local: bool) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(_EXPERTS, _HIDDEN, _DIM))
        self.w2 = nn.Parameter(torch.empty(_EXPERTS, _DIM, _HIDDEN))
        self.confuses_local = confuses_local

    def split(self) -> None:
        mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("ep",))
        self.w1 = nn.Parameter(distribute_tensor(self.w1.data, mesh, [Shard(0)]))
        self.w2 = nn.Parameter(distribute_tensor(self.w2.data, mesh, [Shard(0)]))

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        tokens = cast(Tensor, Gather.apply(x, 0))
        mine = own_part(cast(Tensor, Gather.apply(gates, 0)), -1)
        if self.confuses_local:
            mine = mine.flip(-1)
        hidden = F.silu(torch.einsum("bsd,ehd->besh", tokens, local(self.w1)))
        part = torch.einsum("besh,edh,bse->bsd", hidden, local(self.w2), mine)
        return cast(Tensor, Scatter.apply(SumOverRanks.apply(part), 0))


def local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if isinstance(tensor, DTensor) else tensor


class Layer(nn.Module):
    """Experts beside a residual, weighted by a router."""

    def __init__(self, *, confuses_local: bool) -> None:
        super().__init__()
        self.norm = RMSNorm(_DIM, eps=_EPS)
        self.router = nn.Linear(_DIM, _EXPERTS)
        self.experts = Experts(confuses_local=confuses_local)

    def forward(self, x: Tensor) -> Tensor:
        tokens = self.norm(x)
        return x + cast(Tensor, self.experts(tokens, self.router(tokens).softmax(-1)))


class Model(nn.Module):
    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, _DIM)
        self.layers = nn.ModuleList(
            Layer(confuses_local="local-expert-order" in bugs and index == 0) for index in range(2)
        )
        self.head = nn.Linear(_DIM, VOCAB)
        initialise(self.named_parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(x))


def train(bugs: frozenset[str]) -> None:
    ranks = dist.get_world_size()
    model = Model(bugs)
    if is_parallel():
        for layer in model.layers:
            cast(Layer, layer).experts.split()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        for batch in microbatches(parts=ranks, part=dist.get_rank()):
            (summed_loss(model(batch.tokens), batch.labels) * ranks / total_count()).backward()
        for name, parameter in model.named_parameters():
            assert parameter.grad is not None
            if not isinstance(parameter, DTensor):
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
            elif not ("expert-divisor" in bugs and name.startswith("layers.1.")):
                parameter.grad /= ranks
        clip(model)
        optimizer.step()


def clip(model: nn.Module) -> None:
    squares = {True: torch.zeros(()), False: torch.zeros(())}
    for parameter in model.parameters():
        assert parameter.grad is not None
        squares[isinstance(parameter, DTensor)] += local(parameter.grad).square().sum()
    norm = (squares[False] + summed(squares[True])).sqrt()
    clip_grads_with_norm_([p for p in model.parameters() if isinstance(p, DTensor)], MAX_NORM, norm)
    clip_grads_with_norm_(
        [p for p in model.parameters() if not isinstance(p, DTensor)], MAX_NORM, norm
    )


_bug = partial(native_bug, train=train, layout="DP 2 x EP 2")

BUGS = (
    _bug(
        "expert-divisor",
        "gradients of experts are not divided by the ranks whose tokens they saw",
        "torchtitan#1551",
        Blame.of("layers.1.experts", phase=Phase.GRADIENT_REDUCTION),
    ),
    _bug(
        "local-expert-order",
        "tokens reach the right rank but the wrong one of its experts",
        "Megatron-LM 54d4b3ddbb",
        Blame.of("layers.0.experts", phase=Phase.FORWARD),
    ),
)
