"""A pipeline of four blocks under a schedule of torch.distributed.pipelining; or no pipeline."""

import sys

import torch
from team import generate, start, stop
from torch import nn
from torch.distributed import pipelining
from torch.nn import functional as F

import ttrace

name, runs = sys.argv[1], int(sys.argv[2])
rank, world = start()


class Blocks(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.blocks = nn.ModuleDict(
            {n: nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for n in names}
        )

    def forward(self, x):
        for block in self.blocks.values():
            x = x + block(x)
        return x


whole = Blocks("abcd")
generator = generate()
x, y = (torch.randn(8 * runs, 16, generator=generator) for _ in range(2))

if world == 1:
    model = whole
    optimizer = torch.optim.AdamW(whole.parameters(), lr=1e-3)
    with ttrace.attach(model, optimizer).step():
        F.mse_loss(model(x), y).backward()
        optimizer.step()
else:
    is_v = name in ("ScheduleZBVZeroBubble", "ScheduleDualPipeV")
    numbers = (rank, 3 - rank) if is_v else (rank, rank + 2)
    stages = []
    for number in numbers:
        part = Blocks("abcd"[number])
        part.load_state_dict(
            {k: v for k, v in whole.state_dict().items() if k.split(".")[1] == "abcd"[number]}
        )
        stages.append(pipelining.PipelineStage(part, number, 4, torch.device("cpu")))
    parameters = [p for stage in stages for p in stage.submod.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-3)
    schedule = getattr(pipelining.schedules, name)(
        stages,
        n_microbatches=4,
        loss_fn=lambda a, b: F.mse_loss(a, b) / (4 * runs),
        scale_grads=False,  # it would divide what an earlier run of the schedule left, again
    )
    tracer = ttrace.attach(stages, optimizer)
    with tracer.step():
        for run in range(runs):
            mine = slice(8 * run, 8 * (run + 1))
            inputs = (x[mine],) if rank == 0 else ()
            holds_last = 3 in numbers
            schedule.step(*inputs, target=y[mine] if holds_last else None)
        optimizer.step()

stop()
