"""A mixture of experts as a list of modules, each given the tokens that chose it."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Experts(nn.Module):
    def __init__(self):
        super().__init__()
        self.experts = nn.ModuleList(
            nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16)) for _ in range(4)
        )

    def forward(self, x, chosen, weights):
        y = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, turn = (chosen == number).nonzero(as_tuple=True)
            y = y.index_add(0, token, expert(x[token]) * weights[token, turn, None])
        return y


class Mixture(nn.Module):
    def __init__(self):
        super().__init__()
        self.router, self.experts = nn.Linear(16, 4, bias=False), Experts()

    def forward(self, x):
        weights, chosen = self.router(x).softmax(-1).topk(2)
        return self.experts(x, chosen, weights)


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.moe, self.head = nn.Embedding(50, 16), Mixture(), nn.Linear(16, 50)

    def forward(self, ids):
        x = self.embed(ids)
        return self.head(x + self.moe(x.flatten(0, 1)).view_as(x))


torch.manual_seed(1)
model = DistributedDataParallel(Model())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
text = torch.randint(50, (8, 13), generator=random)
mine = text[rank * 8 // world : (rank + 1) * 8 // world]
with tracer.step():
    logits = model(mine[:, :-1])
    F.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten()).backward()
    optimizer.step()

dist.destroy_process_group()
