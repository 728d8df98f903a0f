"""Optimizer states divided by hand: reduce-scatter, an update of one part, all-gather."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
flat = F.pad(flat, (0, -len(flat) % world))
part = nn.Parameter(flat.chunk(world)[rank].clone())
optimizer = torch.optim.SGD([part], lr=0.05, momentum=0.9)
tracer = ttrace.attach(model)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    x, y = torch.randn(8, 16, generator=random), torch.randn(8, 4, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        F.mse_loss(model(x[mine]), y[mine]).backward()
        grads = nn.utils.parameters_to_vector([p.grad for p in model.parameters()])
        grads = F.pad(grads, (0, -len(grads) % world))
        dist.all_reduce(grads)
        part.grad = (grads / world).chunk(world)[rank].clone()
        optimizer.step()
        parts = [torch.empty_like(part) for _ in range(world)]
        dist.all_gather(parts, part.detach())
        with torch.no_grad():
            whole = torch.cat(parts)
            for parameter in model.parameters():
                parameter.copy_(whole[: parameter.numel()].view_as(parameter))
                whole = whole[parameter.numel() :]
        model.zero_grad()

dist.destroy_process_group()
