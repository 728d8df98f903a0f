"""A transformer whose layers are run again in backward, in bf16 by autocast."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Checkpointed(nn.Module):
    def __init__(self):
        super().__init__()
        layer = {"nhead": 2, "dim_feedforward": 48, "dropout": 0.0, "batch_first": True}
        self.embed = nn.Embedding(40, 24)
        self.layers = nn.ModuleList(nn.TransformerEncoderLayer(24, **layer) for _ in range(2))
        self.head = nn.Linear(24, 40)

    def forward(self, tokens):
        x = self.embed(tokens)
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=False)
        return self.head(x)


torch.manual_seed(1)
model = DistributedDataParallel(Checkpointed())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    tokens = torch.randint(40, (8, 13), generator=random)[rank::world]
    with tracer.step():
        with torch.autocast("cpu", torch.bfloat16):
            logits = model(tokens[:, :-1])
            loss = F.cross_entropy(logits.flatten(0, 1).float(), tokens[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
