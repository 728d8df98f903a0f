"""Regression by LBFGS: the optimizer evaluates its closure several times in one step."""

import torch
from team import generate, share, start, stop
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = DistributedDataParallel(nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)))
optimizer = torch.optim.LBFGS(model.parameters(), lr=0.5, max_iter=4)
tracer = ttrace.attach(model, optimizer)

x = torch.randn(32, 8, generator=generate())[share(32)]
y = x.sum(dim=1, keepdim=True).sin()


def closure():
    optimizer.zero_grad()
    loss = nn.functional.mse_loss(model(x), y)
    loss.backward()
    return loss


for _ in range(2):
    with tracer.step():
        optimizer.step(closure)

stop()
