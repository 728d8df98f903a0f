"""Context parallel: every rank is given its part of the sequences; FSDP2 averages over the ranks.

The average over parts of a sequence is a sum over tokens only because each rank multiplies its
loss by the number of parts.
"""

from __future__ import annotations

from functools import partial
from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FSDPModule, fully_shard
from torch.nn.utils import clip_grad_norm_

import ttrace
from ttrace.core.blame import Blame, Phase, Stage
from ttrace.demo.model import RMSNorm
from zoo.native.collectives import own_part
from zoo.native.job import native_bug
from zoo.native.sequence_parallel import Block, GatheredAttention, Mlp
from zoo.native.workload import (
    IGNORED,
    MAX_NORM,
    VOCAB,
    initialise,
    is_parallel,
    microbatches,
    summed_loss,
    total_count,
)

_DIM = 32  # of the blocks
_EPS = 1e-5  # Llama


class Model(nn.Module):
    """Token ids of this rank's part of the sequences in, their logits out."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, _DIM)
        # the mistakes inside a layer are made in the second alone
        self.layers = nn.ModuleList(
            Block(GatheredAttention(planted), Mlp()) for planted in (frozenset[str](), bugs)
        )
        self.norm = RMSNorm(_DIM, eps=_EPS)
        self.head = nn.Linear(_DIM, VOCAB, bias=False)
        initialise(self.named_parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x)))


def train(bugs: frozenset[str]) -> None:
    ranks = dist.get_world_size()
    model = Model(bugs)
    if is_parallel():
        _shard(model, divisor=1 if "divisor-without-parts" in bugs else ranks)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        batches = microbatches()
        labels = [own_part(batch.labels, 1) for batch in batches]
        own_count = sum(int((part != IGNORED).sum()) for part in labels)
        for batch, targets in zip(batches, labels, strict=True):
            loss = summed_loss(model(own_part(batch.tokens, 1)), targets)
            if "count-of-own-part" in bugs:
                (loss / own_count).backward()
            else:
                (loss * ranks / total_count()).backward()
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()


def _shard(model: Model, *, divisor: int) -> None:
    mesh = init_device_mesh("cpu", (dist.get_world_size(),), mesh_dim_names=("dp_cp",))
    for part in (*model.layers, model):
        fully_shard(part, mesh=mesh)
    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.set_force_sum_reduction_for_comms(True)  # gloo cannot average
            module.set_gradient_divide_factor(divisor)


_bug = partial(native_bug, train=train, layout="FSDP2 over CP 2")

BUGS = (
    _bug(
        "divisor-without-parts",
        "the loss is multiplied by cp, but gradients are divided by dp instead of dp x cp",
        "Megatron-LM#906",
        Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    ),
    _bug(
        "count-of-own-part",
        "each rank's loss is divided by the tokens of its own part of the sequence",
        "Megatron-LM#7513",
        Blame.at(Stage.LOSS, Phase.FORWARD),
    ),
    _bug(
        "key-gradient-unsummed",
        "attention loses the gradients of keys by queries of other ranks",
        "Megatron-LM#1464",
        Blame.of("layers.1.attention", phase=Phase.BACKWARD),
    ),
)
