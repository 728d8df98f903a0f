"""Sequence parallel norms with a tensor parallel MLP between them; the input is a DTensor."""

import torch
from team import draw, start, train
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)

LENGTH = 8

rank, world = start()
mesh = init_device_mesh("cpu", (world,))
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


def loss_of(x, y):
    output = model(x).redistribute(placements=[Replicate()])
    return nn.functional.mse_loss(output, y)


def batches():
    for x, y in draw(2, (4, LENGTH, 16), (4, LENGTH, 16)):
        yield distribute_tensor(x, mesh, [Shard(1)]), distribute_tensor(y, mesh, [Replicate()])


train(model, batches(), loss_of, torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False))
