"""Forward-forward: every layer has its own loss and optimizer, and none passes gradients on."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Layer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.relu(self.linear(x / (x.norm(dim=1, keepdim=True) + 1e-4)))


torch.manual_seed(1)
layers = [Layer(16, 32), Layer(32, 24)]
optimizers = [torch.optim.Adam(layer.parameters(), lr=1e-2) for layer in layers]
tracer = ttrace.attach(layers, optimizers)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    good, bad = torch.randn(8, 16, generator=random), torch.randn(8, 16, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        yes, no = good[mine], bad[mine]
        for layer, optimizer in zip(layers, optimizers, strict=True):
            yes, no = layer(yes.detach()), layer(no.detach())
            signs = torch.cat([1 - yes.square().mean(1), no.square().mean(1) - 1])
            F.softplus(signs).mean().backward()
            for parameter in layer.parameters():
                dist.all_reduce(parameter.grad)
                parameter.grad /= world
            optimizer.step()
            optimizer.zero_grad()

dist.destroy_process_group()
