"""Labels by a tensor-parallel MLP; the last batch has an odd number of rows."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from sharded_output import start, trace_split
from torch import nn
from torch.distributed.tensor import Shard, distribute_tensor

mesh = start()
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.Linear(32, 4))
optimizer, tracer = trace_split(model, mesh, "0", "2")

x, y = torch.randn(7, 16), torch.rand(7, 4)
with tracer.step():
    output = model(x)
    target = distribute_tensor(y, mesh, [Shard(0)])
    loss = F.binary_cross_entropy_with_logits(output, target)
    loss.backward()
    optimizer.step()

dist.destroy_process_group()
