"""A small network with BatchNorm in two pipeline stages; the schedule finds the shapes itself."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.linear, self.norm = nn.Linear(16, 16), nn.BatchNorm1d(16)

    def forward(self, x):
        return x + self.norm(self.linear(x)).relu()


class Net(nn.Module):
    def __init__(self, stage, stages):
        super().__init__()
        torch.manual_seed(1)
        blocks = {str(number): Block() for number in range(4)}
        per_stage = 4 // stages
        mine = list(blocks)[stage * per_stage : (stage + 1) * per_stage]
        self.layers = nn.ModuleDict({number: blocks[number] for number in mine})

    def forward(self, x):
        for layer in self.layers.values():
            x = layer(x)
        return x


model = Net(rank, world)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

torch.manual_seed(2)
x, y = torch.randn(16, 16), torch.randn(16, 16)
if world == 1:
    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        for part, target in zip(x.chunk(2), y.chunk(2), strict=True):
            (nn.functional.mse_loss(model(part), target) / 2).backward()
        optimizer.step()
else:
    stage = PipelineStage(model, rank, world, torch.device("cpu"))
    schedule = ScheduleGPipe(stage, n_microbatches=2, loss_fn=nn.functional.mse_loss)
    tracer = ttrace.attach(stage, optimizer)
    with tracer.step():
        schedule.step(x) if rank == 0 else schedule.step(target=y)
        optimizer.step()

dist.destroy_process_group()
