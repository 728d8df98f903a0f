"""Two heads, two losses, two backward calls through the same trunk."""

import torch
import torch.distributed as dist
from team import generate, share, start, stop
from torch import nn
from torch.nn import functional as F

import ttrace


class TwoHeads(nn.Module):
    def __init__(self):
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32))
        self.policy, self.value = nn.Linear(32, 4), nn.Linear(32, 1)

    def forward(self, x):
        h = self.trunk(x)
        return self.policy(h), self.value(h).squeeze(-1)


rank, world = start()
model = TwoHeads()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random, mine = generate(), share(8)
for _ in range(2):
    x, action = torch.randn(8, 16, generator=random), torch.randint(4, (8,), generator=random)
    reward = torch.randn(8, generator=random)
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

stop()
