"""A small causal transformer, its attention written out, trained with DistributedDataParallel."""

import math

import torch
from team import draw_text, predict_next, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

VOCAB, WIDTH, HEADS, LAYERS, BATCH, LENGTH = 64, 32, 4, 3, 8, 12


class Scores(nn.Module):
    """Masked scores of every query for every key."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, q, k):
        scores = q @ k.transpose(-1, -2) / math.sqrt(q.shape[-1])
        mask = torch.ones(q.shape[-2], q.shape[-2], dtype=torch.bool).triu(1)
        return scores.masked_fill(mask, -1e4)


class Probabilities(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, scores):
        return scores.softmax(-1)


class CoreAttention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.scores, self.probabilities = Scores(layer), Probabilities(layer)

    def forward(self, q, k, v):
        return self.probabilities(self.scores(q, k)) @ v


class Attention(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.q, self.k, self.v = (nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.core = CoreAttention(layer)
        self.out = nn.Linear(WIDTH, WIDTH)

    def forward(self, x):
        heads = [
            part(x).unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in (self.q, self.k, self.v)
        ]
        mixed = self.core(*heads)
        return self.out(mixed.transpose(1, 2).flatten(2))


class Block(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.attention = Attention(layer)
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        x = x + self.attention(self.norm1(x))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Transformer(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens = nn.Embedding(VOCAB, WIDTH)
        self.positions = nn.Parameter(0.02 * torch.randn(LENGTH, WIDTH))
        self.layers = nn.ModuleList(Block(layer) for layer in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, VOCAB, bias=False)

    def forward(self, tokens):
        x = self.tokens(tokens) + self.positions
        for layer in self.layers:
            x = layer(x)
        return self.head(self.norm(x))


rank, world = start()
model = DistributedDataParallel(Transformer())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

for (text,) in draw_text(1, VOCAB, (BATCH, LENGTH + 1)):
    with tracer.step():
        loss = predict_next(model(text[:, :-1]), text)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

stop()
