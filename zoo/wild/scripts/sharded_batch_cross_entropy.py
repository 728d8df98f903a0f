"""A tagger whose loss ignores padding; logits and labels are sharded over the batch."""

import os

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)

import ttrace

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))

torch.manual_seed(1)
model = nn.Sequential(nn.Embedding(24, 16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 7))
plan = {
    "1": ColwiseParallel(),
    "3": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
}
parallelize_module(model, mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

words, tags = torch.randint(0, 24, (32,)), torch.randint(0, 7, (32,))
tags[24:] = -100  # padding stands at the end
with tracer.step():
    logits = model(words)
    labels = distribute_tensor(tags, mesh, [Shard(0)])
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
