"""Regression by LBFGS: the optimizer evaluates its closure several times in one step."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
tracer = ttrace.attach(model, optimizer)

x = torch.randn(32, 8, generator=torch.Generator().manual_seed(2))
y = x.sum(dim=1, keepdim=True).sin()
mine = slice(rank * 32 // world, (rank + 1) * 32 // world)


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x[mine]), y[mine])
    loss.backward()
    return loss


for _ in range(2):
    with tracer.step():
        optimizer.step(closure)

dist.destroy_process_group()
