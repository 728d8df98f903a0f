"""An MLP with FSDP1 on a mesh of replicas and shards, as a launcher lays it out."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])
mesh = init_device_mesh("cpu", (world, 1), mesh_dim_names=("replicate", "shard"))

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
model = FullyShardedDataParallel(
    model,
    device_mesh=mesh,
    sharding_strategy=ShardingStrategy.HYBRID_SHARD,
    use_orig_params=True,
    device_id=torch.device("cpu"),
)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
tracer = ttrace.attach(model, optimizer)

torch.manual_seed(2)
x, y = torch.randn(8, 16), torch.randn(8, 4)
mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
with tracer.step():
    loss = nn.functional.mse_loss(model(x[mine]), y[mine])
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
