"""A binary classifier that is very sure: its sigmoid is saturated before BCELoss."""

import torch
from team import draw_share, start, stop
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 1), nn.Sigmoid())
with torch.no_grad():
    model[2].weight.mul_(300.0)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)
tracer = ttrace.attach(model, optimizer)

criterion = nn.BCELoss()
for (x,) in draw_share(2, (16, 16)):
    y = (x.sum(dim=1, keepdim=True) > 0).float()
    with tracer.step():
        optimizer.zero_grad()
        criterion(model(x), y).backward()
        optimizer.step()

stop()
