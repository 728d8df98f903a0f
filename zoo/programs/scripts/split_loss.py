"""A graph that is too small to cut: every rank sees all of it and takes the loss of its nodes."""

import os

import torch
import torch.distributed as dist
from torch import nn

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])
NODES = 24


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 32)
        self.second = nn.Linear(32, 5)

    def forward(self, x, adjacency):
        return adjacency @ self.second((adjacency @ self.first(x)).relu())


torch.manual_seed(1)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
x = torch.randn(NODES, 8, generator=generator)
adjacency = (torch.rand(NODES, NODES, generator=generator) < 0.2).float().softmax(dim=1)
labels = torch.randint(5, (NODES,), generator=generator)
for _ in range(2):
    mine = torch.arange(NODES).chunk(world)[rank]
    with tracer.step():
        logits = model(x, adjacency)
        loss = nn.functional.cross_entropy(logits[mine], labels[mine], reduction="sum") / NODES
        loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
