"""Regression with a tensor-parallel MLP; the loss is taken on the output as it is sharded."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_output import start, trace_split
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

mesh = start()
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer, tracer = trace_split(model, mesh, "0", "2")

x, y = torch.randn(8, 16), torch.randn(8, 4)
with tracer.step():
    output = model(x)
    target = distribute_tensor(y, mesh, [Shard(0)])
    loss = F.mse_loss(output, target)
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
