"""No optimizer and no wrapper: gradients are averaged and parameters updated by hand."""

import os

import torch
import torch.distributed as dist
from torch import nn

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
tracer = ttrace.attach(model)

lr = 0.1
generator = torch.Generator().manual_seed(2)
for _ in range(2):
    x, y = torch.randn(8, 12, generator=generator), torch.randint(3, (8,), generator=generator)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        loss = nn.functional.cross_entropy(model(x[mine]), y[mine])
        loss.backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
        model.zero_grad()

dist.destroy_process_group()
