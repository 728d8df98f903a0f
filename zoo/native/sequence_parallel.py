"""The sequence split over ranks by hand: Ulysses attention, gathered keys, mixture of experts.

Every rank holds all parameters and a part of each sequence between embedding and loss, so local
gradients are parts of a sum that is made after backward; only the embedding, which stands before
the split, has its whole gradient on every rank.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import clip_grad_norm_

import ttrace
from ttrace.core.blame import Blame, Phase, Stage
from ttrace.demo.model import ModelConfig, RMSNorm, apply_rope, rope_table
from zoo.native.collectives import (
    Exchange,
    Gather,
    Scatter,
    SumOverRanks,
    exchanged,
    own_part,
    summed,
)
from zoo.native.job import native_bug
from zoo.native.workload import (
    IGNORED,
    MAX_NORM,
    VOCAB,
    initialise,
    microbatches,
    summed_loss,
    total_count,
)

_DIM, _HIDDEN, _HEAD = 32, 64, 8  # chosen small; 4 heads and 2 kv heads split over 2 ranks
_EXPERTS, _CHOSEN = 4, 2
_AUX_WEIGHT = 0.1  # large, so that the auxiliary loss has a say in the router's gradient
_EPS = 1e-5  # Llama


class _HeadsInterleaved(Exchange):
    """Back from parts of the heads to parts of the sequence, with two dims confused."""

    @staticmethod
    def forward(ctx: Any, tensor: Tensor, split: int, join: int) -> Tensor:
        ctx.split, ctx.join = split, join
        heads = exchanged(tensor, split, join).unflatten(join, (dist.get_world_size(), -1))
        return heads.transpose(join, join + 1).flatten(join, join + 1)


class _OwnGradientOnly(Gather):
    """Keys and values of all ranks, whose gradients by other ranks' queries are lost."""

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return own_part(grads[0], ctx.dim), None


class Projections(nn.Module):
    """What both attentions have in common."""

    def __init__(self, *, key_heads: int) -> None:
        super().__init__()
        self.wq = nn.Linear(_DIM, _DIM, bias=False)
        self.wk = nn.Linear(_DIM, key_heads * _HEAD, bias=False)
        self.wv = nn.Linear(_DIM, key_heads * _HEAD, bias=False)
        self.wo = nn.Linear(_DIM, _DIM)

    def heads(self, x: Tensor) -> list[Tensor]:
        return [each(x).unflatten(-1, (-1, _HEAD)) for each in (self.wq, self.wk, self.wv)]


def attend(query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Of (batch, position, head, channel); every position sees all others."""
    groups = query.shape[2] // key.shape[2]
    key, value = key.repeat_interleave(groups, 2), value.repeat_interleave(groups, 2)
    weights = (torch.einsum("bqhd,bkhd->bhqk", query, key) * _HEAD**-0.5).softmax(-1)
    return torch.einsum("bhqk,bkhd->bqhd", weights, value)


class UlyssesAttention(Projections):
    """Exchanges parts of the sequence for parts of the heads, and back."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__(key_heads=_DIM // _HEAD)
        self.back = _HeadsInterleaved if "ulysses-permutation" in bugs else Exchange

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = (cast(Tensor, Exchange.apply(each, 2, 1)) for each in self.heads(x))
        mixed = cast(Tensor, self.back.apply(attend(query, key, value), 1, 2))
        return cast(Tensor, self.wo(mixed.flatten(2)))


class GatheredAttention(Projections):
    """Queries of its own positions against the keys and values of all, gathered."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__(key_heads=2)
        self.gather_dim = 2 if "gather-dim" in bugs else 1
        self.first_part_only = "unsplit-positions" in bugs
        self.gather = _OwnGradientOnly if "key-gradient-unsummed" in bugs else Gather

    def forward(self, x: Tensor) -> Tensor:
        query, key, value = self.heads(x)
        rope = rope_table(ModelConfig(dim=_DIM, n_heads=_DIM // _HEAD))
        if not self.first_part_only:
            rope = rope[dist.get_rank() * x.shape[1] :]
        query, key = apply_rope(query, rope), apply_rope(key, rope)
        key, value = (cast(Tensor, self.gather.apply(e, self.gather_dim)) for e in (key, value))
        return cast(Tensor, self.wo(attend(query, key, value).flatten(2)))


class _AddLoss(torch.autograd.Function):
    """Hands scores on and gives an auxiliary loss its place in backward, as Megatron-LM does."""

    @staticmethod
    def forward(ctx: Any, scores: Tensor, loss: Tensor) -> Tensor:
        return scores.clone()

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor]:
        return grads[0], torch.ones(())


class Experts(nn.Module):
    """All experts on all tokens, weighted; most weights are zero."""

    def __init__(self) -> None:
        super().__init__()
        self.w1 = nn.Parameter(torch.empty(_EXPERTS, _HIDDEN, _DIM))
        self.w2 = nn.Parameter(torch.empty(_EXPERTS, _DIM, _HIDDEN))

    def forward(self, x: Tensor, gates: Tensor) -> Tensor:
        hidden = F.silu(torch.einsum("bsd,ehd->besh", x, self.w1))
        return torch.einsum("besh,edh,bse->bsd", hidden, self.w2, gates)


class MixtureOfExperts(nn.Module):
    """Two of four experts a token, and a loss that asks for an even load."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.router = nn.Linear(_DIM, _EXPERTS, bias=False)
        self.experts = Experts()
        self.parts = 1 if "aux-loss-scale" in bugs else dist.get_world_size()

    def forward(self, x: Tensor) -> Tensor:
        scores = self.router(x)
        scores = cast(Tensor, _AddLoss.apply(scores, self.auxiliary_loss(scores)))
        weights = scores.softmax(-1)
        return cast(Tensor, self.experts(x, weights * _chosen(weights)))

    def auxiliary_loss(self, scores: Tensor) -> Tensor:
        """The share of tokens times the mean weight of every expert; a rank has its part of it."""
        weights = scores.softmax(-1)
        counts = summed(_chosen(weights).sum((0, 1)))
        return (
            _AUX_WEIGHT
            * _EXPERTS
            * (counts / counts.sum() * weights.mean((0, 1))).sum()
            / (
                self.parts * 2  # microbatches
            )
        )


def _chosen(weights: Tensor) -> Tensor:
    best = weights.detach().topk(_CHOSEN, -1).indices
    return torch.zeros_like(weights).scatter(-1, best, 1.0)


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(_DIM, _HIDDEN), nn.Linear(_HIDDEN, _DIM)

    def forward(self, x: Tensor) -> Tensor:
        return cast(Tensor, self.down(F.gelu(self.up(x))))


class Block(nn.Module):
    def __init__(self, attention: nn.Module, feed_forward: nn.Module) -> None:
        super().__init__()
        self.norm1, self.attention = RMSNorm(_DIM, eps=_EPS), attention
        self.norm2, self.feed_forward = RMSNorm(_DIM, eps=_EPS), feed_forward

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(self.norm1(x))
        return x + cast(Tensor, self.feed_forward(self.norm2(x)))


class Model(nn.Module):
    """Token ids of whole sequences in, logits of this rank's part of them out."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, _DIM)
        self.layers = nn.ModuleList(
            (
                Block(UlyssesAttention(bugs), MixtureOfExperts(bugs)),
                Block(GatheredAttention(bugs), Mlp()),
            )
        )
        self.norm = RMSNorm(_DIM, eps=_EPS)
        self.head = nn.Linear(_DIM, VOCAB, bias=False)

    def forward(self, tokens: Tensor) -> Tensor:
        x = cast(Tensor, Scatter.apply(self.embedding(tokens), 1))
        for layer in self.layers:
            x = layer(x)
        return cast(Tensor, self.head(self.norm(x)))


def train(bugs: frozenset[str]) -> None:
    model = Model(bugs)
    initialise(model.named_parameters())
    if "router-by-rank" in bugs:
        router = model.get_submodule("layers.0.feed_forward.router")
        initialise(router.named_parameters(), seed=dist.get_rank())
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        for batch in microbatches(count=2):
            labels = own_part(batch.labels, 1)
            if "shifted-after-split" in bugs:
                labels[:, -1] = IGNORED  # the next token is on the next rank
            part = summed_loss(model(batch.tokens), labels)
            loss = cast(Tensor, SumOverRanks.apply(part)) / total_count()
            if "loss-times-ranks" in bugs:
                loss = loss * dist.get_world_size()
            loss.backward()
        reduce_gradients(model, bugs)
        clip_grad_norm_(model.parameters(), MAX_NORM)
        optimizer.step()


def reduce_gradients(model: nn.Module, bugs: frozenset[str]) -> None:
    forgotten = {
        "unsynced-norm": "norm.weight",
        "unsynced-router": "layers.0.feed_forward.router.weight",
    }
    left_out = {"embedding.weight", *(name for bug, name in forgotten.items() if bug in bugs)}
    for name, parameter in model.named_parameters():
        if name in left_out or "group-without-sequence" in bugs:
            continue
        assert parameter.grad is not None
        dist.all_reduce(parameter.grad)
        if "averaged-parts" in bugs:
            parameter.grad /= dist.get_world_size()


_bug = partial(native_bug, train=train, layout="sequence 2 by hand")

BUGS = (
    _bug(
        "ulysses-permutation",
        "the second all-to-all of Ulysses attention leaves heads in another order",
        "DeepSpeed#5664",
        Blame.of("layers.0.attention", phase=Phase.FORWARD),
    ),
    _bug(
        "gather-dim",
        "keys and values are gathered along the head dim instead of the sequence",
        "torchtitan#3206",
        Blame.of("layers.1.attention", phase=Phase.FORWARD),
    ),
    _bug(
        "unsplit-positions",
        "every rank rotates its part of the sequence by the positions of the first",
        "torchtitan#792",
        Blame.of("layers.1.attention", phase=Phase.FORWARD),
    ),
    _bug(
        "shifted-after-split",
        "labels are shifted after the sequence was split: the last of each part is lost",
        "transformers#36607",
        Blame.at(Stage.LOSS, Phase.FORWARD),
    ),
    _bug(
        "loss-times-ranks",
        "a loss that is divided by all tokens is multiplied by the parts of the sequence",
        "Megatron-LM 5946e24b37",
        Blame.at(Stage.LOSS, Phase.FORWARD),
    ),
    _bug(
        "aux-loss-scale",
        "each rank adds the whole auxiliary loss of a router whose gradient is summed",
        "Megatron-LM cac8d1a3f0",
        Blame.of("layers.0.feed_forward", phase=Phase.BACKWARD),
    ),
    _bug(
        "router-by-rank",
        "a router's weight, equal on all ranks, is drawn from each rank's own seed",
        "Megatron-LM 1113758d24",
        Blame.of("layers.0.feed_forward.router", phase=Phase.PARAMETERS),
    ),
    _bug(
        "unsynced-router",
        "a router's gradient is not summed over the parts of the sequence",
        "Megatron-LM#599",
        Blame.of("layers.0.feed_forward.router", phase=Phase.GRADIENT_REDUCTION),
    ),
    _bug(
        "unsynced-norm",
        "a norm weight's gradient is not summed over the parts of the sequence",
        "Megatron-LM 20b7a5489d",
        Blame.of("norm", phase=Phase.GRADIENT_REDUCTION),
    ),
    _bug(
        "group-without-sequence",
        "gradients are reduced over a group that leaves out the sequence's ranks",
        "VeOmni#1059",
        Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    ),
    _bug(
        "averaged-parts",
        "gradients of parts of a sequence are averaged instead of summed",
        "DeepSpeed#5555",
        Blame.at(Stage.GRADIENT_REDUCTION, Phase.MAIN_GRADIENT),
    ),
)
