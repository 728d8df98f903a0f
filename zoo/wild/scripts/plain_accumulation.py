"""Accumulation on one process; a window's loss is divided by the batches that it has."""

from itertools import islice

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import ttrace

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
data = TensorDataset(torch.randn(40, 16), torch.randn(40, 4))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

loader = DataLoader(data, batch_size=8)
batches = iter(loader)
for start in range(0, len(loader), 2):
    size = min(2, len(loader) - start)
    with tracer.step():
        for x, y in islice(batches, size):
            loss = nn.functional.mse_loss(model(x), y)
            (loss / size).backward()
        optimizer.step()
        optimizer.zero_grad()
