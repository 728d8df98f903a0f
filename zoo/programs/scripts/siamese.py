"""Two towers by one network, and a loss over all pairs of the batch: features are gathered."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Gather(torch.autograd.Function):
    """The rows of all ranks; gradients go back to those that made them."""

    @staticmethod
    def forward(ctx, rows):
        parts = [torch.empty_like(rows) for _ in range(world)]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx, grad):
        grad = grad.contiguous()
        dist.all_reduce(grad)
        return grad.chunk(world)[rank]


torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    left = torch.randn(8, 16, generator=random)
    right = left + 0.1 * torch.randn(8, 16, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        one, other = (F.normalize(model(view[mine]), dim=1) for view in (left, right))
        whole, pairs = Gather.apply(torch.cat([one, other], dim=1)), torch.arange(8)[mine]
        losses = (
            F.cross_entropy(view @ views.T / 0.1, pairs)
            for view, views in zip((one, other), reversed(whole.chunk(2, dim=1)), strict=True)
        )
        loss = sum(losses) / 2
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
