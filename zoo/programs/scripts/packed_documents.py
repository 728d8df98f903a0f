"""Documents packed one after the other without padding; attention stays within each of them."""

import os
from itertools import pairwise

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(32, 96)
        self.out = nn.Linear(32, 32)

    def forward(self, x, bounds):
        q, k, v = self.qkv(x).view(-1, 3, 4, 8).permute(1, 2, 0, 3)
        parts = [
            nn.functional.scaled_dot_product_attention(
                q[:, a:b], k[:, a:b], v[:, a:b], is_causal=True
            )
            for a, b in pairwise(bounds.tolist())
        ]
        return self.out(torch.cat(parts, dim=1).transpose(0, 1).flatten(1))


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(50, 32)
        self.positions = nn.Embedding(16, 32)
        self.norm = nn.LayerNorm(32)
        self.attention = Attention()
        self.head = nn.Linear(32, 50)

    def forward(self, ids, positions, bounds):
        x = self.embed(ids) + self.positions(positions)
        return self.head(x + self.attention(self.norm(x), bounds))


torch.manual_seed(1)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
for lengths in ([5, 7, 12, 9], [8, 11, 6, 3]):
    texts = [torch.randint(50, (length + 1,), generator=generator) for length in lengths]
    mine = texts[rank * 4 // world : (rank + 1) * 4 // world]
    ids = torch.cat([text[:-1] for text in mine])
    labels = torch.cat([text[1:] for text in mine])
    positions = torch.cat([torch.arange(len(text) - 1) for text in mine])
    bounds = torch.tensor([0, *(len(text) - 1 for text in mine)]).cumsum(0)
    with tracer.step():
        loss = nn.functional.cross_entropy(model(ids, positions, bounds), labels, reduction="sum")
        (loss * world / sum(lengths)).backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
