"""A critic whose gradient with respect to its inputs is kept near one (WGAN-GP)."""

import torch
from team import average_gradients, generate, share, start, stop
from torch import nn

import ttrace

rank, world = start()
critic = nn.Sequential(nn.Linear(16, 32), nn.Softplus(), nn.Linear(32, 1))
optimizer = torch.optim.Adam(critic.parameters(), lr=1e-3)
tracer = ttrace.attach(critic, optimizer)

random, mine = generate(), share(8)
for _ in range(2):
    real, fake = torch.randn(8, 16, generator=random), torch.randn(8, 16, generator=random)
    place = torch.rand(8, 1, generator=random)
    with tracer.step():
        loss = critic(fake[mine]).mean() - critic(real[mine]).mean()
        between = (place * real + (1 - place) * fake)[mine].requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        loss = loss + 10 * (slope.norm(dim=1) - 1).square().mean()
        loss.backward()
        average_gradients(critic)
        optimizer.step()
        optimizer.zero_grad()

stop()
