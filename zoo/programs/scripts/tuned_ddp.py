"""An MLP with dropout switched off, whose optimizer has one group with decay and one without."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Block(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(self.up(self.norm(x)).relu()))


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 16), Block(16, 0.0), Block(16, 0.0), nn.Linear(16, 4))
model = DistributedDataParallel(model)
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim == 1]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
for _ in range(3):
    x, y = torch.randn(8, 8, generator=generator), torch.randn(8, 4, generator=generator)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()

dist.destroy_process_group()
