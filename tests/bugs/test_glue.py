"""Mistakes between modules and in autograd: named by isolation, and nothing else; twins pass."""

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

WIDTH, BATCH = 12, 8


class InPlace(nn.Module):
    """Changes its input in place and returns it, as fused residual adds do."""

    def __init__(self) -> None:
        super().__init__()
        self.gain = nn.Parameter(torch.full((WIDTH,), 1.5))

    def forward(self, x: Tensor) -> Tensor:
        return x.mul_(self.gain)


class Block(nn.Module):
    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 24), nn.Linear(24, WIDTH)
        self.scale = InPlace()
        self.mistake = mistake

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.up(self.norm(x))
        if self.mistake == "detached":
            hidden = hidden.detach()
        hidden = F.gelu(hidden)
        if self.mistake == "doubled":
            hidden = hidden * 2
        hidden = self.scale(self.down(hidden))
        return x + hidden


class Model(nn.Module):
    def __init__(self, mistake: str) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block(mistake if n == 1 else "") for n in range(3))
        self.head = nn.Linear(WIDTH, 4)

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def train(mistake: str = "") -> None:
    torch.manual_seed(0)
    ranks, rank = dist.get_world_size(), dist.get_rank()
    plain: Any = Model(mistake)
    model: nn.Module = plain
    inputs, targets = torch.randn(3, BATCH, WIDTH), torch.randint(4, (3, BATCH))
    if ranks > 1:
        model = DistributedDataParallel(model, find_unused_parameters=True)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    tracer = ttrace.attach(model, optimizer)
    for step in range(3):
        with tracer.step():
            logits = model(inputs[step].chunk(ranks)[rank])
            F.cross_entropy(logits, targets[step].chunk(ranks)[rank]).backward()
            optimizer.step()
            optimizer.zero_grad()
        if mistake == "stale" and rank == 1 and step == 0:
            with torch.no_grad():  # as if this rank had missed the gather
                plain.blocks[1].up.weight.add_(0.01)


@pytest.mark.parametrize(
    ("mistake", "blame"),
    [
        ("doubled", Blame.of("blocks.1", phase=Phase.FORWARD)),
        ("detached", Blame.of("blocks.1", phase=Phase.BACKWARD)),
        ("stale", Blame.of("blocks.1.up", phase=Phase.PARAMETER_GATHER)),
    ],
)
def test_mistake_is_named(mistake: str, blame: Blame, trials: Trials) -> None:
    candidate = Function(train, ranks=2, arguments=(mistake,))
    trial = trials.run(Function(train), candidate, steps=3)
    assert trial.plain.exit_code == 1
    assert trial.named == (blame,), explain(trial.told)


def test_correct_twin_passes(trials: Trials) -> None:
    trial = trials.run(Function(train), Function(train, ranks=2), steps=3)
    for result in trial.results:
        assert result.exit_code == 0, explain(result)
        assert not result.coverage.faults
