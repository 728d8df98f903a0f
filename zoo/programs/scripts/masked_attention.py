"""A small transformer on padded sequences: the model makes one mask for all of its layers."""

import torch
from team import generate, share, start, train
from torch import nn
from torch.nn.parallel import DistributedDataParallel


class MaskedSoftmax(nn.Module):
    def forward(self, scores, mask):
        return scores.masked_fill(~mask, float("-inf")).softmax(dim=-1)


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm = nn.LayerNorm(dim)
        self.qkv = nn.Linear(dim, 3 * dim)
        self.softmax = MaskedSoftmax()
        self.out = nn.Linear(dim, dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 2 * dim), nn.GELU(), nn.Linear(2 * dim, dim))

    def forward(self, x, mask):
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).unbind(2)
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k) / q.shape[-1] ** 0.5
        attended = torch.einsum("bhqk,bkhd->bqhd", self.softmax(scores, mask), v)
        x = x + self.out(attended.flatten(2))
        return x + self.mlp(x)


class Model(nn.Module):
    def __init__(self, vocabulary=48, dim=16, heads=2, layers=2):
        super().__init__()
        self.embed = nn.Embedding(vocabulary, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(layers))
        self.head = nn.Linear(dim, vocabulary)

    def forward(self, tokens, lengths):
        place = torch.arange(tokens.shape[1])
        causal = place[:, None] >= place[None, :]
        present = place[None, :] < lengths[:, None]
        mask = causal[None, None] & present[:, None, None, :]
        x = self.embed(tokens)
        for layer in self.layers:
            x = layer(x, mask)
        return self.head(x)


rank, world = start()
model = DistributedDataParallel(Model())


def loss_of(tokens, labels, lengths):
    return nn.functional.cross_entropy(model(tokens, lengths).flatten(0, 1), labels.flatten())


random, mine = generate(), share(8)
tokens, labels = (torch.randint(48, (8, 12), generator=random) for _ in range(2))
lengths = torch.tensor([12, 9, 7, 11, 8, 12, 10, 6])
train(model, [(tokens[mine], labels[mine], lengths[mine])] * 2, loss_of)
