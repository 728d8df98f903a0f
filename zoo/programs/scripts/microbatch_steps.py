"""A step() around every microbatch; the optimizer steps with every second, as trainers do it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for number in range(4):
    x, y = torch.randn(8, 16, generator=random), torch.randn(8, 4, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    is_last = number % 2 == 1
    with tracer.step():
        model.require_backward_grad_sync = is_last
        (F.mse_loss(model(x[mine]), y[mine]) / 2).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

dist.destroy_process_group()
