"""A step() around every microbatch; the optimizer steps with every second, as trainers do it."""

import torch
from team import draw_share, make_mlp, start, stop
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = DistributedDataParallel(make_mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

for number, (x, y) in enumerate(draw_share(4, (8, 16), (8, 4))):
    is_last = number % 2 == 1
    with tracer.step():
        model.require_backward_grad_sync = is_last
        (F.mse_loss(model(x), y) / 2).backward()
        if is_last:
            optimizer.step()
            optimizer.zero_grad()

stop()
