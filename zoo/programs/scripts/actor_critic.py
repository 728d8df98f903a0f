"""An actor and a critic in one network, an entropy bonus, advantages over the whole batch."""

import torch
import torch.distributed as dist
from team import generate, share, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Sequential(nn.Linear(6, 32), nn.Tanh())
        self.actor, self.critic = nn.Linear(32, 3), nn.Linear(32, 1)

    def forward(self, state):
        hidden = self.body(state)
        return self.actor(hidden), self.critic(hidden).squeeze(-1)


rank, world = start()
model = DistributedDataParallel(ActorCritic())
optimizer = torch.optim.RMSprop(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random, mine = generate(), share(8)
for _ in range(2):
    states = torch.randn(8, 6, generator=random)
    actions, returns = torch.randint(3, (8,), generator=random), torch.randn(8, generator=random)
    with tracer.step():
        with torch.no_grad():
            _, values = model(states[mine])
        advantages = returns[mine] - values
        total = torch.stack([advantages.sum(), advantages.square().sum()])
        dist.all_reduce(total)
        mean = total[0] / 8
        advantages = (advantages - mean) / ((total[1] / 8 - mean.square()).sqrt() + 1e-5)
        logits, values = model(states[mine])
        chances = logits.log_softmax(-1)
        chosen = chances.gather(1, actions[mine, None]).squeeze(1)
        entropy = -(chances.exp() * chances).sum(-1).mean()
        loss = -(advantages * chosen).mean() - 0.01 * entropy
        (loss + 0.5 * F.mse_loss(values, returns[mine])).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        optimizer.step()
        optimizer.zero_grad()

stop()
