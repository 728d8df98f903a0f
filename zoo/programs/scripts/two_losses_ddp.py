"""Two heads, two losses, two backward calls through the same trunk."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
        self.policy = nn.Linear(32, 4)
        self.value = nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.policy(h), self.value(h).squeeze(-1)


torch.manual_seed(1)
model = TwoHeads()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
for _ in range(2):
    x, action = torch.randn(8, 16, generator=generator), torch.randint(4, (8,), generator=generator)
    reward = torch.randn(8, generator=generator)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        policy, value = model(x[mine])
        policy_loss = F.cross_entropy(policy, action[mine])
        policy_loss.backward(retain_graph=True)
        value_loss = 0.5 * F.mse_loss(value, reward[mine])
        value_loss.backward()
        for parameter in model.parameters():
            dist.all_reduce(parameter.grad)
            parameter.grad /= world
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
