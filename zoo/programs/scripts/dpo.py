"""Preferences: a policy is trained against a frozen copy of itself."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.mix, self.head = nn.Embedding(40, 16), nn.Linear(16, 16), nn.Linear(16, 40)

    def forward(self, tokens):
        hidden = self.embed(tokens).cumsum(1) / torch.arange(1, tokens.shape[1] + 1)[:, None]
        return self.head(F.gelu(self.mix(hidden)))


def chance(model, tokens):
    """The log of the probability of every sequence."""
    chances = model(tokens[:, :-1]).log_softmax(-1)
    return chances.gather(2, tokens[:, 1:, None]).sum((1, 2))


torch.manual_seed(1)
policy, frozen = Policy(), Policy()
frozen.load_state_dict(policy.state_dict())
with torch.no_grad():  # the policy has been trained a little
    for parameter in policy.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.02)
frozen.requires_grad_(False)
policy = DistributedDataParallel(policy)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
tracer = ttrace.attach({"policy": policy, "frozen": frozen}, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    chosen = torch.randint(40, (8, 10), generator=random)
    rejected = torch.randint(40, (8, 10), generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        with torch.no_grad():
            before = chance(frozen, chosen[mine]) - chance(frozen, rejected[mine])
        now = chance(policy, torch.cat([chosen[mine], rejected[mine]])).chunk(2)
        loss = -F.logsigmoid(0.1 * (now[0] - now[1] - before)).mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
