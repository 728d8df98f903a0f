"""A causal nn.TransformerEncoder, whose float mask has -inf above the diagonal."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Language(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(32, 16)
        layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 32)

    def forward(self, tokens, mask):
        return self.head(self.encoder(self.embed(tokens), mask=mask, is_causal=False))


torch.manual_seed(1)
model = DistributedDataParallel(Language())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
mask = nn.Transformer.generate_square_subsequent_mask(10)
for _ in range(2):
    tokens = torch.randint(32, (8, 11), generator=generator)
    mine = tokens[rank * 8 // world : (rank + 1) * 8 // world]
    with tracer.step():
        logits = model(mine[:, :-1], mask)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), mine[:, 1:].flatten())
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
