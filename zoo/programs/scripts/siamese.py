"""Two towers by one network, and a loss over all pairs of the batch: features are gathered."""

import torch
import torch.distributed as dist
from team import average_gradients, draw, share, start, stop
from torch import nn
from torch.nn import functional as F

import ttrace


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


rank, world = start()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 8))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

mine = share(8)
for left, noise in draw(2, (8, 16), (8, 16)):
    views = (left[mine], (left + 0.1 * noise)[mine])
    with tracer.step():
        one, other = (F.normalize(model(view), dim=1) for view in views)
        whole, pairs = Gather.apply(torch.cat([one, other], dim=1)), torch.arange(8)[mine]
        losses = (
            F.cross_entropy(view @ views.T / 0.1, pairs)
            for view, views in zip((one, other), reversed(whole.chunk(2, dim=1)), strict=True)
        )
        (sum(losses) / 2).backward()
        average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()

stop()
