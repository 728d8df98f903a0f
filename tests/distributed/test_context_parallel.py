"""Sequences split over ranks, by neighbours or zigzag, against one process."""

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace
from tests.support.tracing import explain
from ttrace.core.blame import Blame, Phase
from ttrace.lab.run import Function
from zoo.trials import Trials

WIDTH, HEADS, VOCAB, BATCH, LENGTH = 16, 2, 48, 4, 16


class Gather(torch.autograd.Function):
    """Every rank's positions; `bug` keeps only this rank's share of the gradient."""

    @staticmethod
    def forward(
        ctx: Any, part: Tensor, group: dist.ProcessGroup, zigzag: bool, bug: bool
    ) -> Tensor:
        ctx.group, ctx.zigzag, ctx.bug = group, zigzag, bug
        parts = [torch.empty_like(part) for _ in range(dist.get_world_size(group))]
        dist.all_gather(parts, part.contiguous(), group=group)
        return whole_of(parts, zigzag=zigzag)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        whole = grads[0].contiguous()
        if not ctx.bug:
            dist.all_reduce(whole, group=ctx.group)
        cp, index = dist.get_world_size(ctx.group), dist.get_rank(ctx.group)
        return slice_of(whole, cp, index, zigzag=ctx.zigzag), None, None, None


class Attention(nn.Module):
    def __init__(self, group: dist.ProcessGroup | None, *, zigzag: bool, bug: bool) -> None:
        super().__init__()
        self.group, self.zigzag, self.bug = group, zigzag, bug
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.core = Core()

    def forward(self, x: Tensor, positions: Tensor) -> Tensor:
        query, key, value = self.qkv(x).chunk(3, dim=-1)
        at = positions
        if self.group is not None:
            how = self.group, self.zigzag
            key, value = (Gather.apply(part, *how, self.bug) for part in (key, value))
            at = Gather.apply(positions, *how, False)
        mask = positions[0][:, None] >= at[0][None, :]
        return self.out(self.core(query, key, value, mask=mask))


class Core(nn.Module):
    """A module of its own, so that gathered keys and values pass a boundary."""

    def forward(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        query, key, value = (
            part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (query, key, value)
        )
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        return mixed.transpose(1, 2).flatten(2)


class Model(nn.Module):
    def __init__(
        self,
        group: dist.ProcessGroup | None = None,
        *,
        zigzag: bool = False,
        bug: bool = False,
    ) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCAB, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.layers = nn.ModuleList(
            Attention(group, zigzag=zigzag, bug=bug and number == 1) for number in range(3)
        )
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCAB)

    def forward(self, tokens: Tensor, positions: Tensor) -> Tensor:
        x = self.tokens(tokens) + self.places(positions)
        for layer in self.layers:
            x = x + layer(x, positions)
        return self.head(self.norm(x).flatten(0, 1))


def train(cp: int = 1, zigzag: bool = False, bug: bool = False) -> None:
    ranks = dist.get_world_size()
    dp = ranks // cp
    groups = [dist.new_group([d * cp + c for c in range(cp)]) for d in range(dp)]
    mine, index = dist.get_rank() // cp, dist.get_rank() % cp
    torch.manual_seed(0)
    model: nn.Module = Model(groups[mine] if cp > 1 else None, zigzag=zigzag, bug=bug)
    torch.manual_seed(1)
    tokens, labels = torch.randint(VOCAB, (2, BATCH, LENGTH))
    positions = torch.arange(LENGTH).expand(BATCH, -1)
    if ranks > 1:
        model = DistributedDataParallel(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        held = [part.chunk(dp)[mine] for part in (tokens, positions, labels)]
        inputs, at, targets = (slice_of(part, cp, index, zigzag=zigzag) for part in held)
        F.cross_entropy(model(inputs, at), targets.flatten()).backward()
        optimizer.step()


def whole_of(parts: list[Tensor], *, zigzag: bool) -> Tensor:
    """The inverse of `slice_of` over all ranks."""
    if not zigzag:
        return torch.cat(parts, dim=1)
    halves = [part.chunk(2, dim=1) for part in parts]
    return torch.cat([*(a for a, _ in halves), *(b for _, b in reversed(halves))], dim=1)


def slice_of(whole: Tensor, cp: int, index: int, *, zigzag: bool) -> Tensor:
    if not zigzag:
        return whole.chunk(cp, dim=1)[index]
    chunks = whole.chunk(2 * cp, dim=1)
    return torch.cat([chunks[index], chunks[2 * cp - 1 - index]], dim=1)


@pytest.mark.parametrize(
    ("ranks", "cp", "zigzag"), [(2, 2, False), (2, 2, True), (4, 2, True), (4, 4, False)]
)
def test_context_parallel_passes(ranks: int, cp: int, zigzag: bool, trials: Trials) -> None:
    candidate = Function(train, ranks=ranks, arguments=(cp, zigzag))
    trial = trials.run(Function(train), candidate)
    for result in trial.results:
        assert result.exit_code == 0, explain(result)
        assert not result.coverage.faults
    assert {result.verdict.value for result in trial.plain.tensors} == {"pass"}


def test_context_parallel_run_can_be_the_reference(trials: Trials) -> None:
    reference = Function(train, ranks=2, arguments=(2, True))
    trial = trials.run(reference, Function(train))
    for result in trial.results:
        assert result.exit_code == 0, explain(result)


def test_gradient_that_stays_on_its_rank_is_named(trials: Trials) -> None:
    candidate = Function(train, ranks=2, arguments=(2, True, True))
    trial = trials.run(Function(train), candidate)
    assert trial.plain.exit_code == 1
    assert trial.named == (Blame.of("layers.1", phase=Phase.BACKWARD),)
