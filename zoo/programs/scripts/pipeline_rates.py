"""A stack of blocks on the stages of a pipeline, each with its own optimizer; or whole on one."""

import torch
from team import generate, start, stop
from torch import nn
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe

import ttrace

rank, world = start()


class Stack(nn.Module):
    def __init__(self, numbers):
        super().__init__()
        self.blocks = nn.ModuleDict()
        for number in numbers:
            torch.manual_seed(number)
            self.blocks[str(number)] = nn.Sequential(nn.Linear(12, 12), nn.GELU())

    def forward(self, x):
        for block in self.blocks.values():
            x = block(x)
        return x


model = Stack(range(rank * 4 // world, (rank + 1) * 4 // world))
optimizer = torch.optim.AdamW(model.parameters(), lr=2.5e-4)

generator = generate()
x, y = torch.randn(8, 12, generator=generator), torch.randn(8, 12, generator=generator)
if world == 1:
    tracer = ttrace.attach(model, optimizer)
else:
    stage = PipelineStage(model, rank, world, torch.device("cpu"))
    tracer = ttrace.attach(stage, optimizer)
    schedule = ScheduleGPipe(stage, n_microbatches=4, loss_fn=nn.functional.mse_loss)

for _ in range(2):
    with tracer.step():
        if world == 1:
            nn.functional.mse_loss(model(x), y).backward()
        elif rank == 0:
            schedule.step(x)
        else:
            schedule.step(target=y)
        optimizer.step()
        optimizer.zero_grad()

stop()
