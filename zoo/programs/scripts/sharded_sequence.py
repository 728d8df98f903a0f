"""Sequence parallel norms with a tensor parallel MLP between them; the input is a DTensor."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

import ttrace

LENGTH = 8

dist.init_process_group("gloo")
mesh = init_device_mesh("cpu", (int(os.environ["WORLD_SIZE"]),))

torch.manual_seed(1)
model = nn.Sequential(
    nn.LayerNorm(16), nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 16), nn.LayerNorm(16)
)
parallelize_module(
    model,
    mesh,
    {
        "0": SequenceParallel(),
        "1": ColwiseParallel(input_layouts=Shard(1)),
        "3": RowwiseParallel(output_layouts=Shard(1), use_local_output=False),
        "4": SequenceParallel(),
    },
)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)
tracer = ttrace.attach(model, optimizer)

generator = torch.Generator().manual_seed(2)
for _ in range(2):
    x = torch.randn(4, LENGTH, 16, generator=generator)
    y = distribute_tensor(torch.randn(4, LENGTH, 16, generator=generator), mesh, [Replicate()])
    x = distribute_tensor(x, mesh, [Shard(1)])
    with tracer.step():
        output = model(x).redistribute(placements=[Replicate()])
        loss = nn.functional.mse_loss(output, y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
