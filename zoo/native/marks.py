"""Mistakes that leave a mark of their own, in layers that a candidate has of its own.

The reference is plain PyTorch. The candidate, data parallel by hand, has layers that somebody wrote
anew for speed, and a loop of its own; each bug is one line of that.
"""

from __future__ import annotations

from functools import partial
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F

import ttrace
from ttrace.core.blame import Blame, Phase, Stage
from zoo.native.collectives import Gather
from zoo.native.job import native_bug
from zoo.native.workload import (
    LABELS,
    SEQUENCE,
    VOCAB,
    initialise,
    microbatches,
    summed_loss,
    total_count,
)

_DIM = SEQUENCE  # so that nothing fails where tokens and channels are exchanged
_LEARNING_RATE = 1e-3


class Positions(nn.Module):
    """A vector for every place of a sequence."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(SEQUENCE + 1, _DIM))
        self.first = 1 if "positions-from-one" in bugs else 0

    def forward(self, x: Tensor) -> Tensor:
        places = torch.arange(self.first, self.first + x.shape[1])
        return F.embedding(places, self.weight).expand_as(x)


class Shift(nn.Module):
    """Every token gets what the one before it had."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.by = 2 if "shifted-twice" in bugs else 1

    def forward(self, x: Tensor) -> Tensor:
        return F.pad(x, (0, 0, self.by, -self.by))


class TokenMixer(nn.Module):
    """A linear over the places of a sequence."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(SEQUENCE, SEQUENCE))
        self.stays = "not-transposed-back" in bugs

    def forward(self, x: Tensor) -> Tensor:
        mixed = F.linear(x.transpose(1, 2), self.weight)
        return mixed if self.stays else mixed.transpose(1, 2)


class Masked(nn.Module):
    """Keeps what a mask allows: here, all of it."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.fills = "mask-never-filled" not in bugs

    def forward(self, x: Tensor) -> Tensor:
        mask = torch.zeros_like(x)
        return x * (mask.fill_(1) if self.fills else mask)


class _Minus(torch.autograd.Function):
    """A difference with a backward of its own."""

    @staticmethod
    def forward(ctx: Any, first: Tensor, second: Tensor, sign: int) -> Tensor:
        ctx.sign = sign
        return first - second

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None]:
        return grads[0], ctx.sign * grads[0], None


class Contrast(nn.Module):
    """The difference of two activations."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.sign = 1 if "sign-of-a-difference" in bugs else -1

    def forward(self, first: Tensor, second: Tensor) -> Tensor:
        return cast(Tensor, _Minus.apply(first, second, self.sign))


class Fused(nn.Module):
    """Two linears in one weight: the first half of what it gives is a gate, the other is gated."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(2 * _DIM, _DIM))
        self.exchanges = "gate-after-value" in bugs

    def forward(self, x: Tensor) -> Tensor:
        gate, value = F.linear(x, self.weight).chunk(2, -1)
        return torch.cat([value, gate] if self.exchanges else [gate, value], -1)


class ToAllAndBack(nn.Module):
    """Samples of all ranks on every rank, then each takes its own back."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.next = 1 if "part-of-the-next" in bugs else 0
        self.rounds = "gathered-in-bf16" in bugs

    def forward(self, x: Tensor) -> Tensor:
        x = x.bfloat16().float() if self.rounds else x
        whole = cast(Tensor, Gather.apply(x, 0))
        ranks = dist.get_world_size()
        return whole.chunk(ranks)[(dist.get_rank() + self.next) % ranks]


class Scale(nn.Module):
    """Divides by the number of labels for each sample, in all of the batch."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.counts_own = "count-of-each-rank" in bugs

    def forward(self, x: Tensor) -> Tensor:
        ranks = dist.get_world_size()
        own = microbatches(parts=ranks, part=dist.get_rank())
        count = ranks * sum(batch.count for batch in own) if self.counts_own else total_count()
        return x * len(LABELS) / count


class Model(nn.Module):
    """Each layer stands once."""

    def __init__(self, bugs: frozenset[str]) -> None:
        super().__init__()
        self.embedding = nn.Embedding(VOCAB, _DIM)
        self.positions = Positions(bugs)
        self.shift, self.mixer = Shift(bugs), TokenMixer(bugs)
        self.fused, self.back = Fused(bugs), ToAllAndBack(bugs)
        self.masked, self.contrast = Masked(bugs), Contrast(bugs)
        self.scale, self.head = Scale(bugs), nn.Linear(_DIM, VOCAB)
        self.cuts = "detached" in bugs
        initialise(self.named_parameters())

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens)
        x = x + self.positions(x)
        x = x + self.mixer(self.shift(x))
        gate, value = self.fused(x).chunk(2, -1)
        term = self.masked(self.back(F.silu(gate) * value))
        x = self.scale(self.contrast(x, term))
        return cast(Tensor, self.head(x.detach() if self.cuts else x))


def train(bugs: frozenset[str]) -> None:
    ranks, rank = dist.get_world_size(), dist.get_rank()
    model = Model(bugs)
    rate = _LEARNING_RATE * (ranks if "rate-times-ranks" in bugs else 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        part = 0 if "same-samples" in bugs else rank
        for batch in microbatches(parts=ranks, part=part):
            loss = summed_loss(model(batch.tokens), batch.labels) * ranks / total_count()
            loss.backward()
        for parameter in model.parameters():
            if parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
        optimizer.step()


_ORIGIN = "made up"
_bug = partial(native_bug, train=train, layout="DP 2, layers of its own")

BUGS = (
    _bug(
        "positions-from-one",
        "positions are counted from 1",
        _ORIGIN,
        Blame.of("positions", phase=Phase.FORWARD),
    ),
    _bug(
        "shifted-twice",
        "a layer that shifts tokens by one place shifts them by two",
        _ORIGIN,
        Blame.of("shift", phase=Phase.FORWARD),
    ),
    _bug(
        "not-transposed-back",
        "a linear over tokens hands its result on transposed",
        _ORIGIN,
        Blame.of("mixer", phase=Phase.FORWARD),
    ),
    _bug(
        "mask-never-filled",
        "a mask is allocated and never filled",
        _ORIGIN,
        Blame.of("masked", phase=Phase.FORWARD),
    ),
    _bug(
        "sign-of-a-difference",
        "the backward of a difference forgets the minus sign of its second term",
        _ORIGIN,
        Blame.of("contrast", phase=Phase.BACKWARD),
    ),
    _bug(
        "detached",
        "what the last layer gets is detached: nothing before it is trained",
        _ORIGIN,
        Blame.of("", phase=Phase.BACKWARD),
    ),
    _bug(
        "gate-after-value",
        "the halves of a fused weight are taken for each other",
        _ORIGIN,
        Blame.of("fused", phase=Phase.FORWARD),
    ),
    _bug(
        "part-of-the-next",
        "after an all-gather every rank takes the part of the next one",
        _ORIGIN,
        Blame.of("back", phase=Phase.FORWARD),
    ),
    _bug(
        "gathered-in-bf16",
        "activations are rounded to bf16 before they are sent to other ranks",
        _ORIGIN,
        Blame.of("back", phase=Phase.FORWARD),
    ),
    _bug(
        "count-of-each-rank",
        "activations are divided by a count of the rank's own labels",
        _ORIGIN,
        Blame.of("scale", phase=Phase.FORWARD),
    ),
    _bug(
        "same-samples",
        "every rank takes the same part of the batch",
        _ORIGIN,
        Blame.at(Stage.MODEL_INPUT, Phase.INPUTS),
    ),
    _bug(
        "rate-times-ranks",
        "the learning rate is multiplied by the ranks, though the batch is the same",
        _ORIGIN,
        Blame.at(Stage.OPTIMIZER_STEP, Phase.UPDATE),
    ),
)
