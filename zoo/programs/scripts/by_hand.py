"""No optimizer and no wrapper: gradients are averaged and parameters updated by hand."""

import torch
import torch.distributed as dist
from team import generate, share, start, stop
from torch import nn

import ttrace

rank, world = start()
model = nn.Sequential(nn.Linear(12, 24), nn.Tanh(), nn.Linear(24, 3))
tracer = ttrace.attach(model)

lr = 0.1
random, mine = generate(), share(8)
for _ in range(2):
    x, y = torch.randn(8, 12, generator=random), torch.randint(3, (8,), generator=random)
    with tracer.step():
        nn.functional.cross_entropy(model(x[mine]), y[mine]).backward()
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad /= world
        with torch.no_grad():
            for p in model.parameters():
                p -= lr * p.grad
        model.zero_grad()

stop()
