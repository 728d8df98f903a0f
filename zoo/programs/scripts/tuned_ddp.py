"""An MLP with dropout switched off, whose optimizer has one group with decay and one without."""

import torch
from team import draw_share, start, stop
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace


class Block(nn.Module):
    def __init__(self, dim, dropout):
        super().__init__()
        self.norm = nn.LayerNorm(dim, eps=1e-5)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x):
        return x + self.dropout(self.down(self.up(self.norm(x)).relu()))


rank, world = start()
model = nn.Sequential(nn.Linear(8, 16), Block(16, 0.0), Block(16, 0.0), nn.Linear(16, 4))
model = DistributedDataParallel(model)
decayed = [p for p in model.parameters() if p.ndim > 1]
others = [p for p in model.parameters() if p.ndim == 1]
groups = [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}]
optimizer = torch.optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95), eps=1e-8)
schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 1 / (1 + step))
tracer = ttrace.attach(model, optimizer)

for x, y in draw_share(3, (8, 8), (8, 4)):
    with tracer.step():
        nn.functional.mse_loss(model(x), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), max_norm=0.5)
        optimizer.step()
        optimizer.zero_grad()
    schedule.step()

stop()
