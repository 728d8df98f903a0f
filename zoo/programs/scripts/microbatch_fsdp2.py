"""FSDP2 with a step() around every microbatch; gradients are reduced with every second."""

import torch
from team import draw_share, make_mlp, start, stop
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn import functional as F

import ttrace

rank, world = start()
model = make_mlp()
fully_shard(model, mesh=init_device_mesh("cpu", (world,)))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

for number, (x, y) in enumerate(draw_share(4, (8, 16), (8, 4))):
    is_last = number % 2 == 1
    model.set_requires_gradient_sync(is_last)
    with tracer.step():
        (F.mse_loss(model(x), y) / 2).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

stop()
