"""Fine-tuning by low-rank matrices beside frozen weights."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Lora(nn.Module):
    def __init__(self, linear, rank):
        super().__init__()
        self.linear = linear.requires_grad_(False)
        self.down = nn.Linear(linear.in_features, rank, bias=False)
        self.up = nn.Linear(rank, linear.out_features, bias=False)

    def forward(self, x):
        return self.linear(x) + 2 * self.up(self.down(x))


torch.manual_seed(1)
model = nn.Sequential(Lora(nn.Linear(16, 32), 4), nn.GELU(), Lora(nn.Linear(32, 4), 2))
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    x, y = torch.randn(8, 16, generator=random), torch.randn(8, 4, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        F.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
