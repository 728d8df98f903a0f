"""A word language model: a GRU that carries its state on, tied weights, clipped gradients."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


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


torch.manual_seed(1)
model = DistributedDataParallel(WordModel())
optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
tracer = ttrace.attach(model, optimizer)

columns = 8 // world
corpus = torch.randint(60, (21, 8), generator=torch.Generator().manual_seed(2))
corpus = corpus[:, rank * columns : (rank + 1) * columns]
hidden = torch.zeros(2, columns, 32)
for start in (0, 10):
    with tracer.step():
        optimizer.zero_grad()
        logits, hidden = model(corpus[start : start + 10], hidden.detach())
        targets = corpus[start + 1 : start + 11]
        F.cross_entropy(logits.flatten(0, 1), targets.flatten()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.25)
        optimizer.step()

dist.destroy_process_group()
