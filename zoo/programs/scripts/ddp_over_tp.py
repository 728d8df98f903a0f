"""Two ways at once: linear layers are split over one dim of a mesh, the batch over the other."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    parallelize_module,
)
from torch.distributed.tensor.parallel.ddp import _pre_dp_module_transform
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
replica, replicas = 0, 1
if world > 1:
    mesh = init_device_mesh("cpu", (world // 2, 2), mesh_dim_names=("dp", "tp"))
    replica, replicas = mesh["dp"].get_local_rank(), world // 2
    parallelize_module(model, mesh["tp"], {"0": ColwiseParallel(), "2": RowwiseParallel()})
    _pre_dp_module_transform(model)
    model = DistributedDataParallel(model, process_group=mesh["dp"].get_group())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    x, y = torch.randn(8, 16, generator=random), torch.randn(8, 4, generator=random)
    mine = slice(replica * 8 // replicas, (replica + 1) * 8 // replicas)
    with tracer.step():
        F.mse_loss(model(x[mine]), y[mine]).backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
