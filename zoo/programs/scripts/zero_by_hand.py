"""Optimizer states divided by hand: reduce-scatter, an update of one part, all-gather."""

import torch
import torch.distributed as dist
from team import draw_share, make_mlp, start, stop
from torch import nn
from torch.nn import functional as F

import ttrace

rank, world = start()
model = make_mlp()
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
flat = F.pad(flat, (0, -len(flat) % world))
part = nn.Parameter(flat.chunk(world)[rank].clone())
optimizer = torch.optim.SGD([part], lr=0.05, momentum=0.9)
tracer = ttrace.attach(model)

for x, y in draw_share(2, (8, 16), (8, 4)):
    with tracer.step():
        F.mse_loss(model(x), y).backward()
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

stop()
