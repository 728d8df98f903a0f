"""Two microbatches before every step; DDP reduces with the last one."""

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
for _ in range(2):
    x, y = torch.randn(16, 16, generator=random), torch.randn(16, 4, generator=random)
    mine = torch.arange(rank, 16, world)
    with tracer.step():
        first, second = mine.chunk(2)
        with model.no_sync():
            (F.mse_loss(model(x[first]), y[first]) / 2).backward()
        (F.mse_loss(model(x[second]), y[second]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
