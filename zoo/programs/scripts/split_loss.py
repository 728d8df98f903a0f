"""A graph that is too small to cut: every rank sees all of it and takes the loss of its nodes."""

import torch
import torch.distributed as dist
from team import generate, start, stop
from torch import nn

import ttrace

NODES = 24


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(8, 32), nn.Linear(32, 5)

    def forward(self, x, adjacency):
        return adjacency @ self.second((adjacency @ self.first(x)).relu())


rank, world = start()
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random, mine = generate(), torch.arange(NODES).chunk(world)[rank]
x = torch.randn(NODES, 8, generator=random)
adjacency = (torch.rand(NODES, NODES, generator=random) < 0.2).float().softmax(dim=1)
labels = torch.randint(5, (NODES,), generator=random)
for _ in range(2):
    with tracer.step():
        logits = model(x, adjacency)
        loss = nn.functional.cross_entropy(logits[mine], labels[mine], reduction="sum") / NODES
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

stop()
