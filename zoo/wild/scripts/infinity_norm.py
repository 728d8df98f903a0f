"""The largest output of a tensor-parallel MLP is made small; the output stays sharded."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard
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

x = torch.randn(8, 16)
with tracer.step():
    loss = model(x).norm(float("inf")).full_tensor()
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
