"""FullyShardedDataParallel, the first of its kind, with one flat parameter for every block."""

import torch
from team import Block, draw_share, start, stop
from torch import nn
from torch.distributed.fsdp import FullyShardedDataParallel
from torch.distributed.fsdp.wrap import ModuleWrapPolicy
from torch.nn import functional as F

import ttrace

rank, world = start()
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

for x, y in draw_share(2, (8, 16), (8, 4)):
    with tracer.step():
        F.mse_loss(model(x), y).backward()
        if world > 1:
            model.clip_grad_norm_(0.05)
        else:
            nn.utils.clip_grad_norm_(model.parameters(), 0.05)
        optimizer.step()
        optimizer.zero_grad()

stop()
