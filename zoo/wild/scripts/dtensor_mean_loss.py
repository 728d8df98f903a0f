"""Regression with a tensor-parallel MLP; the loss is taken on the output as it is sharded."""

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
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
plan = {
    "0": ColwiseParallel(),
    "2": RowwiseParallel(output_layouts=Shard(0), use_local_output=False),
}
parallelize_module(model, mesh, plan)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

x, y = torch.randn(8, 16), torch.randn(8, 4)
with tracer.step():
    output = model(x)
    target = distribute_tensor(y, mesh, [Shard(0)])
    loss = F.mse_loss(output, target)
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
