"""Pipelines of torch.distributed.pipelining against one process: schedules, and a planted bug."""

import copy
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.pipelining import (
    PipelineStage,
    Schedule1F1B,
    ScheduleGPipe,
    ScheduleInterleaved1F1B,
)
from torch.nn import functional as F

import ttrace
from tests.support.tracing import explain
from ttrace.core.blame import Blame, Phase
from ttrace.lab.run import Function
from zoo.trials import Trials

WIDTH, VOCAB, LAYERS, BATCH, LENGTH, MICROBATCHES = 16, 32, 4, 8, 6, 4


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 32), nn.Linear(32, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Model(nn.Module):
    """The whole, or the stages `first` to `last` of its layers under their global names."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding: nn.Module | None = nn.Embedding(VOCAB, WIDTH)
        self.layers = nn.ModuleDict({str(number): Layer() for number in range(LAYERS)})
        self.head: nn.Module | None = nn.Linear(WIDTH, VOCAB)

    def forward(self, x: Tensor) -> Tensor:
        if self.embedding is not None:
            x = self.embedding(x)
        for layer in self.layers.values():
            x = layer(x)
        return x if self.head is None else self.head(x)

    def stage(self, index: int, count: int) -> "Model":
        part = copy.deepcopy(self)
        size = LAYERS // count
        kept = range(index * size, (index + 1) * size)
        part.layers = nn.ModuleDict({str(n): part.layers[str(n)] for n in kept})
        if index > 0:
            part.embedding = None
        if index < count - 1:
            part.head = None
        return part


def loss_of(logits: Tensor, targets: Tensor) -> Tensor:
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten())


def setting() -> tuple[Model, Tensor, Tensor]:
    torch.manual_seed(0)
    return (
        Model(),
        torch.randint(VOCAB, (BATCH, LENGTH)),
        torch.randint(VOCAB, (BATCH, LENGTH)),
    )


def train_whole() -> None:
    model, tokens, targets = setting()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        loss_of(model(tokens), targets).backward()
        optimizer.step()


def train_pipeline(schedule_name: str, stages_of_a_rank: int, bug: bool) -> None:
    model, tokens, targets = setting()
    rank, ranks = dist.get_rank(), dist.get_world_size()
    count = ranks * stages_of_a_rank
    indices = range(rank, count, ranks)
    modules: dict[int, Any] = {index: model.stage(index, count) for index in indices}
    if bug and "2" in (layers := modules[max(modules)].layers):
        spoil(layers["2"].up)
    stages = [
        PipelineStage(module, index, count, torch.device("cpu"))
        for index, module in modules.items()
    ]
    optimizer = torch.optim.AdamW([p for m in modules.values() for p in m.parameters()], lr=1e-3)
    tracer = ttrace.attach(stages if stages_of_a_rank > 1 else stages[0], optimizer)
    kinds = {
        "gpipe": ScheduleGPipe,
        "1f1b": Schedule1F1B,
        "interleaved": ScheduleInterleaved1F1B,
    }
    first = stages if schedule_name == "interleaved" else stages[0]
    schedule = kinds[schedule_name](first, MICROBATCHES, loss_fn=loss_of)
    with tracer.step():
        inputs = (tokens,) if rank == 0 else ()
        schedule.step(*inputs, **({"target": targets} if rank == ranks - 1 else {}))
        optimizer.step()


def spoil(module: nn.Module) -> None:
    original = module.forward
    module.forward = lambda x: original(x) * 1.001


@pytest.mark.parametrize(
    ("schedule", "stages_of_a_rank"), [("gpipe", 1), ("1f1b", 1), ("interleaved", 2)]
)
def test_pipeline_passes(schedule: str, stages_of_a_rank: int, trials: Trials) -> None:
    candidate = Function(train_pipeline, ranks=2, arguments=(schedule, stages_of_a_rank, False))
    trial = trials.run(Function(train_whole), candidate)
    for result in trial.results:
        assert result.exit_code == 0, explain(result)
        assert not result.coverage.faults
        assert not result.coverage.unfired
    # Nothing of the reference is left out, and nothing belongs to the pipeline alone.
    assert {result.verdict.value for result in trial.plain.tensors} == {"pass"}


def test_bug_in_the_second_stage_is_named(trials: Trials) -> None:
    candidate = Function(train_pipeline, ranks=2, arguments=("1f1b", 1, True))
    trial = trials.run(Function(train_whole), candidate)
    assert trial.plain.exit_code == 1
    assert trial.named == (Blame.of("layers.2.up", phase=Phase.FORWARD),)
