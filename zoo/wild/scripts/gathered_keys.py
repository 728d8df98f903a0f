"""Attention over a sequence that is split among ranks: every rank gathers all keys and values."""

import math
import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.nn.functional import all_gather

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


def gathered(x):
    return torch.cat(all_gather(x), dim=1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = nn.Linear(16, 16), nn.Linear(16, 16), nn.Linear(16, 16)

    def forward(self, x):
        q, k, v = self.q(x), gathered(self.k(x)), gathered(self.v(x))
        scores = (q @ k.transpose(1, 2)) / math.sqrt(16)
        return scores.softmax(-1) @ v


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.attn, self.last = nn.Linear(8, 16), Attention(), nn.Linear(16, 4)

    def forward(self, x):
        return self.last(self.attn(self.first(x)))


torch.manual_seed(1)
model = Net()
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

x, y = torch.randn(3, 8, 8), torch.randn(3, 8, 4)
mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
with tracer.step():
    loss = nn.functional.mse_loss(model(x[:, mine]), y[:, mine])
    loss.backward()
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= world
    optimizer.step()

dist.destroy_process_group()
