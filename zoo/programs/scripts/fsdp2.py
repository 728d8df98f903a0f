"""FSDP2: blocks are sharded, computed in bf16, and their gradients reduced in fp32."""

import torch
from team import Block, draw_share, start, stop
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.nn import functional as F

import ttrace

rank, world = start()
model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
mesh = init_device_mesh("cpu", (world,))
policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)
for block in model:
    fully_shard(block, mesh=mesh, mp_policy=policy)
fully_shard(model, mesh=mesh, mp_policy=policy)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

for x, y in draw_share(2, (8, 16), (8, 4)):
    with tracer.step():
        F.mse_loss(model(x).float(), y).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()

stop()
