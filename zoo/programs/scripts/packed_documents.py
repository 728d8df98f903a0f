"""Documents packed one after the other without padding; attention stays within each of them."""

from itertools import pairwise

import torch
from team import generate, share, start, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.qkv, self.out = nn.Linear(32, 96), nn.Linear(32, 32)

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
    def __init__(self):
        super().__init__()
        self.embed, self.positions = nn.Embedding(50, 32), nn.Embedding(16, 32)
        self.norm = nn.LayerNorm(32)
        self.attention = Attention()
        self.head = nn.Linear(32, 50)

    def forward(self, ids, positions, bounds):
        x = self.embed(ids) + self.positions(positions)
        return self.head(x + self.attention(self.norm(x), bounds))


def batches():
    random = generate()
    for lengths in ([5, 7, 12, 9], [8, 11, 6, 3]):
        texts = [torch.randint(50, (length + 1,), generator=random) for length in lengths]
        mine = texts[share(4)]
        ids = torch.cat([text[:-1] for text in mine])
        labels = torch.cat([text[1:] for text in mine])
        positions = torch.cat([torch.arange(len(text) - 1) for text in mine])
        bounds = torch.tensor([0, *(len(text) - 1 for text in mine)]).cumsum(0)
        yield ids, positions, bounds, labels, sum(lengths)


def loss_of(ids, positions, bounds, labels, count):
    loss = nn.functional.cross_entropy(model(ids, positions, bounds), labels, reduction="sum")
    return loss * world / count


rank, world = start()
model = DistributedDataParallel(Model())
train(model, batches(), loss_of)
