"""Inputs are centred by a running mean over all ranks, which every step moves a little."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Centre(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))

    def forward(self, x):
        centred = x - self.mean
        batch = x.detach().mean(dim=0)
        dist.all_reduce(batch)
        batch = batch / world
        self.mean.lerp_(batch, 0.1)
        return centred


torch.manual_seed(1)
model = nn.Sequential(Centre(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
for _ in range(3):
    x, y = torch.randn(8, 16, generator=generator) + 1, torch.randn(8, 4, generator=generator)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
