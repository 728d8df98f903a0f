"""FSDP2 with the 8-bit AdamW of torchao."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torchao.optim import AdamW8bit

import ttrace

OUT = 6
dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cpu", (world,))

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(8, 1024), nn.GELU(), nn.Linear(1024, OUT))
fully_shard(model, mesh=mesh)
optimizer = AdamW8bit(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

torch.manual_seed(2)
for _ in range(2):
    x, y = torch.randn(8, 8), torch.randn(8, OUT)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with torch.compiler.set_stance("force_eager"), tracer.step():
        loss = nn.functional.mse_loss(model(x[mine]), y[mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
