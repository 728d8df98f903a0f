"""A tagger whose loss ignores padding; logits and labels are sharded over the batch."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_output import start, trace_split
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

mesh = start()
model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 7))
optimizer, tracer = trace_split(model, mesh, "1", "3")

words, tags = torch.randint(0, 24, (32,)), torch.randint(0, 7, (32,))
tags[24:] = -100  # padding stands at the end
with tracer.step():
    logits = model(words)
    labels = distribute_tensor(tags, mesh, [Shard(0)])
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
