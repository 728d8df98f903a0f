"""The largest output of a tensor-parallel MLP is made small; the output stays sharded."""

import torch
import torch.distributed as dist
from sharded_output import start, trace_split
from torch import nn

mesh = start()
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer, tracer = trace_split(model, mesh, "0", "2")

x = torch.randn(8, 16)
with tracer.step():
    loss = model(x).norm(float("inf")).full_tensor()
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
