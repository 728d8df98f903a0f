"""FullyShardedDataParallel, the first of its kind, with one flat parameter for every block."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


torch.manual_seed(1)
model = nn.Sequential(Block(), Block(), nn.Linear(16, 4))
if world > 1:
    model = FullyShardedDataParallel(
        model,
        auto_wrap_policy=ModuleWrapPolicy({Block}),
        device_id=torch.device("cpu"),
        use_orig_params=True,
    )
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    x, y = torch.randn(8, 16, generator=random), torch.randn(8, 4, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    with tracer.step():
        F.mse_loss(model(x[mine]), y[mine]).backward()
        if world > 1:
            model.clip_grad_norm_(0.05)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
