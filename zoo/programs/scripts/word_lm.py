"""A word language model: a GRU that carries its state on, tied weights, clipped gradients."""

import torch
from team import generate, share, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace


class WordModel(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(60, 32)
        self.rnn = nn.GRU(32, 32, num_layers=2)
        self.head = nn.Linear(32, 60)
        self.head.weight = self.embed.weight

    def forward(self, tokens, hidden):
        output, hidden = self.rnn(self.embed(tokens), hidden)
        return self.head(output), hidden


rank, world = start()
model = DistributedDataParallel(WordModel())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
tracer = ttrace.attach(model, optimizer)

corpus = torch.randint(60, (21, 8), generator=generate())[:, share(8)]
hidden = torch.zeros(2, 8 // world, 32)
for begin in (0, 10):
    with tracer.step():
        optimizer.zero_grad()
        logits, hidden = model(corpus[begin : begin + 10], hidden.detach())
        targets = corpus[begin + 1 : begin + 11]
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

stop()
