"""Context parallel: each rank has a part of every sequence and gathers keys, its own first."""

import torch
import torch.distributed.nn
from team import average_gradients, generate, start, stop
from torch import nn
from torch.nn import functional as F

import ttrace

LENGTH = 16


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (nn.Linear(24, 24) for _ in range(3))
        self.softmax = nn.Softmax(dim=-1)
        self.out = nn.Linear(24, 24)

    def forward(self, x, positions):
        query, key, value = self.query(x), self.key(x), self.value(x)
        order = [(rank + turn) % world for turn in range(world)]
        parts = torch.distributed.nn.all_gather(torch.cat([key, value], dim=-1))
        key, value = torch.cat([parts[i] for i in order], dim=1).chunk(2, dim=-1)
        places = torch.arange(LENGTH).view(world, -1)[order].flatten()
        scores = query @ key.mT / 24**0.5
        scores = scores.masked_fill(places > positions[:, None], float("-inf"))
        return self.out(self.softmax(scores) @ value)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(40, 24)
        self.attention = Attention()
        self.norm, self.head = nn.LayerNorm(24), nn.Linear(24, 40)

    def forward(self, tokens, positions):
        x = self.embed(tokens)
        return self.head(self.norm(x + self.attention(x, positions)))


rank, world = start()
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random, mine = generate(), torch.arange(LENGTH).chunk(world)[rank]
for _ in range(2):
    tokens = torch.randint(40, (4, LENGTH + 1), generator=random)
    with tracer.step():
        logits = model(tokens[:, mine], mine)
        F.cross_entropy(logits.flatten(0, 1), tokens[:, mine + 1].flatten()).backward()
        average_gradients(model)
        optimizer.step()
        optimizer.zero_grad()

stop()
