"""FSDP2 with one optimizer for each parameter, which steps as soon as its gradient is there."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
model = nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))
if world > 1:
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
optimizers = {p: torch.optim.AdamW([p], lr=1e-3) for p in model.parameters()}


def update(parameter):
    optimizers[parameter].step()
    optimizers[parameter].zero_grad()


for p in model.parameters():
    p.register_post_accumulate_grad_hook(update)
tracer = ttrace.attach(model, list(optimizers.values()))

generator = torch.Generator().manual_seed(2)
for _ in range(2):
    x, y = torch.randn(8, 16, generator=generator), torch.randn(8, 4, generator=generator)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        nn.functional.mse_loss(model(x[mine]), y[mine]).backward()

dist.destroy_process_group()
