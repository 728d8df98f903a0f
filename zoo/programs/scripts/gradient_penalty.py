"""A critic whose gradient with respect to its inputs is kept near one (WGAN-GP)."""

import os

import torch
import torch.distributed as dist
from torch import nn

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
critic = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
tracer = ttrace.attach(critic, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    real, fake = torch.randn(8, 16, generator=random), torch.randn(8, 16, generator=random)
    share = torch.rand(8, 1, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        loss = critic(fake[mine]).mean() - critic(real[mine]).mean()
        between = (share * real + (1 - share) * fake)[mine].requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = loss + 10 * (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        for parameter in critic.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
