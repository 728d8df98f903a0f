"""A classifier of sequences of many lengths: an LSTM over a packed batch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Classifier(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 16, padding_idx=0)
        self.lstm = nn.LSTM(16, 24, batch_first=True)
        self.head = nn.Linear(24, 3)

    def forward(self, tokens, lengths):
        packed = nn.utils.rnn.pack_padded_sequence(
            self.embed(tokens), lengths, batch_first=True, enforce_sorted=False
        )
        _, (hidden, _) = self.lstm(packed)
        return self.head(hidden[-1])


torch.manual_seed(1)
model = DistributedDataParallel(Classifier())
optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    tokens = torch.randint(1, 50, (8, 12), generator=random)
    lengths = torch.randint(3, 13, (8,), generator=random)
    tokens[torch.arange(12) >= lengths[:, None]] = 0
    labels = torch.randint(3, (8,), generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        loss = F.cross_entropy(model(tokens[mine], lengths[mine]), labels[mine])
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
