"""A variational autoencoder; the noise of every sample is drawn before the batch is divided."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class VAE(nn.Module):
    def __init__(self):
        super().__init__()
        self.encode = nn.Sequential(nn.Linear(24, 32), nn.ReLU())
        self.mean, self.log_variance = nn.Linear(32, 4), nn.Linear(32, 4)
        self.decode = nn.Sequential(nn.Linear(4, 32), nn.ReLU(), nn.Linear(32, 24), nn.Sigmoid())

    def forward(self, x, noise):
        hidden = self.encode(x)
        mean, log_variance = self.mean(hidden), self.log_variance(hidden)
        return self.decode(mean + noise * (log_variance / 2).exp()), mean, log_variance


torch.manual_seed(1)
model = DistributedDataParallel(VAE())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    x, noise = torch.rand(8, 24, generator=random), torch.randn(8, 4, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        made, mean, log_variance = model(x[mine], noise[mine])
        likelihood = F.binary_cross_entropy(made, x[mine], reduction="sum")
        divergence = -0.5 * (1 + log_variance - mean.square() - log_variance.exp()).sum()
        loss = (likelihood + divergence) / len(x[mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
