"""Preferences: a policy is trained against a frozen copy of itself."""

import torch
from team import generate, share, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace


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


rank, world = start()
policy, frozen = Policy(), Policy()
frozen.load_state_dict(policy.state_dict())
with torch.no_grad():  # the policy has been trained a little
    for parameter in policy.parameters():
        parameter.add_(torch.randn_like(parameter), alpha=0.02)
frozen.requires_grad_(False)
policy = DistributedDataParallel(policy)
optimizer = torch.optim.AdamW(policy.parameters(), lr=1e-3)
tracer = ttrace.attach({"policy": policy, "frozen": frozen}, optimizer)

random = generate()
for _ in range(2):
    chosen, rejected = (torch.randint(40, (8, 10), generator=random)[share(8)] for _ in range(2))
    with tracer.step():
        with torch.no_grad():
            before = chance(frozen, chosen) - chance(frozen, rejected)
        now = chance(policy, torch.cat([chosen, rejected])).chunk(2)
        (-F.logsigmoid(0.1 * (now[0] - now[1] - before)).mean()).backward()
        optimizer.step()
        optimizer.zero_grad()

stop()
