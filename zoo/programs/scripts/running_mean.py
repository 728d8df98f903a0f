"""Inputs are centred by a running mean over all ranks, which every step moves a little."""

import torch
import torch.distributed as dist
from team import draw_share, start, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Centre(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.register_buffer("mean", torch.zeros(dim))

    def forward(self, x):
        centred = x - self.mean
        batch = x.detach().mean(dim=0)
        dist.all_reduce(batch)
        batch = batch / world
        self.mean.lerp_(batch, 0.1)
        return centred


rank, world = start()
model = nn.Sequential(Centre(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
model = DistributedDataParallel(model)
batches = draw_share(3, (8, 16), (8, 4))
train(model, batches, lambda x, y: nn.functional.mse_loss(model(x + 1), y))
