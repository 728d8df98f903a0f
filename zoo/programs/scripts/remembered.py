"""Blocks that tell their first linear what it will be given; it refuses any other tensor."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Remembering(nn.Linear):
    def forward(self, x):
        assert x is self.expected, "this is not the tensor that the block announced"
        return super().forward(x)


class Block(nn.Module):
    def __init__(self, dim, scale):
        super().__init__()
        self.scale = scale
        self.up, self.down = Remembering(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        self.up.expected = x
        hidden = self.up(x)
        return x + self.scale * self.down(hidden.relu())


class Model(nn.Module):
    def __init__(self, scales):
        super().__init__()
        self.blocks = nn.ModuleList(Block(16, scale) for scale in scales)
        self.head = nn.Linear(16, 4)

    def forward(self, x):
        for block in self.blocks:
            x = block(x)
        return self.head(x)


torch.manual_seed(1)
model = DistributedDataParallel(Model([0.5, 0.25, 0.125]))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
x, y = torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)
mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
with tracer.step():
    loss = nn.functional.mse_loss(model(x[mine]), y[mine])
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
