"""Self-distillation: the model teaches itself, under no_grad, before its own turn."""

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

generator = torch.Generator().manual_seed(2)
for _ in range(2):
    x, y = torch.randn(16, 16, generator=generator), torch.randint(4, (16,), generator=generator)
    weak = x + 0.1 * torch.randn(16, 16, generator=generator)
    mine = slice(rank * 16 // world, (rank + 1) * 16 // world)
    with tracer.step():
        for part in range(2):
            rows = slice(mine.start + part * 8 // world, mine.start + (part + 1) * 8 // world)
            with torch.no_grad():
                teacher = F.softmax(model(weak[rows]) / 2, dim=-1)
            student = model(x[rows])
            loss = F.cross_entropy(student, y[rows]) + F.cross_entropy(student / 2, teacher)
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x[mine])

dist.destroy_process_group()
