"""Forward-forward: every layer has its own loss and optimizer, and none passes gradients on."""

import torch
from team import average_gradients, draw_share, start, stop
from torch import nn
from torch.nn import functional as F

import ttrace


class Layer(nn.Module):
    def __init__(self, inputs, outputs):
        super().__init__()
        self.linear = nn.Linear(inputs, outputs)

    def forward(self, x):
        return torch.relu(self.linear(x / (x.norm(dim=1, keepdim=True) + 1e-4)))


rank, world = start()
layers = [Layer(16, 32), Layer(32, 24)]
optimizers = [torch.optim.Adam(layer.parameters(), lr=1e-2) for layer in layers]
tracer = ttrace.attach(layers, optimizers)

for yes, no in draw_share(2, (8, 16), (8, 16)):
    with tracer.step():
        for layer, optimizer in zip(layers, optimizers, strict=True):
            yes, no = layer(yes.detach()), layer(no.detach())
            signs = torch.cat([1 - yes.square().mean(1), no.square().mean(1) - 1])
            F.softplus(signs).mean().backward()
            average_gradients(layer)
            optimizer.step()
            optimizer.zero_grad()

stop()
