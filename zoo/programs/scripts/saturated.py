"""A binary classifier that is very sure: its sigmoid is saturated before BCELoss."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
with torch.no_grad():
    model[2].weight.mul_(300.0)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
criterion = nn.BCELoss()
for _ in range(2):
    x = torch.randn(16, 16, generator=generator)
    y = (x.sum(dim=1, keepdim=True) > 0).float()
    mine = slice(rank * 16 // world, (rank + 1) * 16 // world)
    with tracer.step():
        optimizer.zero_grad()
        loss = criterion(model(x[mine]), y[mine])
        loss.backward()
        optimizer.step()

dist.destroy_process_group()
