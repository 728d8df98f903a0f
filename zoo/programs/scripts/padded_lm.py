"""A language model on sentences of many lengths: each rank pads to the longest of its own."""

import torch
from team import generate, share, start, stop
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils.rnn import pad_sequence

import ttrace

PAD = 0


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(50, 32, padding_idx=PAD)
        self.encoder = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.head = nn.Linear(32, 50)

    def forward(self, ids, mask):
        return self.head(self.encoder(self.embed(ids), src_key_padding_mask=mask))


rank, world = start()
model = DistributedDataParallel(Model())
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

random = generate()
for lengths in ([5, 7, 12, 9], [8, 11, 6, 3]):
    texts = [torch.randint(1, 50, (length,), generator=random) for length in lengths]
    mine = texts[share(4)]
    ids = pad_sequence(mine, batch_first=True, padding_value=PAD)
    tokens = sum(len(text) - 1 for text in texts)
    with tracer.step():
        logits = model(ids, ids == PAD)
        loss = nn.functional.cross_entropy(
            logits[:, :-1].flatten(0, 1), ids[:, 1:].flatten(), ignore_index=PAD, reduction="sum"
        )
        (loss * world / tokens).backward()
        optimizer.step()
        optimizer.zero_grad()

stop()
