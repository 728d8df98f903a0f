"""A small language model whose layers are split over ranks by hand, with a bug to find.

python train.py                                      one process
torchrun --standalone --nproc-per-node 2 train.py    two, each with a half of every layer
"""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ttrace

rank, world = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
WORDS, WIDTH, HEADS, HIDDEN = 64, 32, 4, 128


def summed(x):
    x = x.clone()
    if world > 1:
        dist.all_reduce(x)
    return x


class SumOverRanks(torch.autograd.Function):
    """Each rank has a term: all get the sum, and each term gets the sum's gradient."""

    @staticmethod
    def forward(ctx, x):
        return summed(x)

    @staticmethod
    def backward(ctx, grad):
        return grad


class UseOnRanks(torch.autograd.Function):
    """All ranks use the same value: its gradient is the sum of theirs."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, grad):
        return summed(grad)


def split(outputs, inputs, dim):
    """This rank's part of a weight that is the same whatever the number of ranks."""
    whole = torch.randn(outputs, inputs) * inputs**-0.5
    return nn.Parameter(whole.chunk(world, dim)[rank].clone())


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.query, self.key, self.value = (split(WIDTH, WIDTH, dim=0) for _ in range(3))
        self.out = split(WIDTH, WIDTH, dim=1)

    def forward(self, x):
        x = UseOnRanks.apply(x)
        parts = [F.linear(x, weight) for weight in (self.query, self.key, self.value)]
        heads = [part.unflatten(-1, (HEADS // world, -1)).transpose(1, 2) for part in parts]
        mixed = F.scaled_dot_product_attention(*heads, is_causal=True)
        return SumOverRanks.apply(F.linear(mixed.transpose(1, 2).flatten(2), self.out))


class MLP(nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = split(HIDDEN, WIDTH, dim=0), split(WIDTH, HIDDEN, dim=1)

    def forward(self, x):
        hidden = F.gelu(F.linear(x, self.up))
        return SumOverRanks.apply(F.linear(hidden, self.down))


class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(WIDTH), Attention()
        self.norm2, self.mlp = nn.LayerNorm(WIDTH), MLP()

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.mlp(self.norm2(x))


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        self.layers = nn.Sequential(Layer(), Layer())

    def forward(self, tokens):
        return self.head(self.layers(self.embed(tokens)))


torch.manual_seed(0)
model = Model()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
text = torch.arange(2000) ** 2 % 61  # something to learn
if world > 1:
    dist.init_process_group("gloo")

tracer = ttrace.attach(model, optimizer)
for step in range(41):
    tokens = torch.stack([text[start : start + 17] for start in torch.randint(1900, (8,))])
    with tracer.step():
        loss = F.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    if rank == 0 and step % 10 == 0:
        print(f"step {step}: loss {loss.item():.3f}")

if world > 1:
    dist.destroy_process_group()
