"""Two microbatches before every step; DDP reduces with the last one."""

import torch
from team import draw, make_mlp, start, stop
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = DistributedDataParallel(make_mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

for x, y in draw(2, (16, 16), (16, 4)):
    first, second = torch.arange(rank, 16, world).chunk(2)
    with tracer.step():
        with model.no_sync():
            (F.mse_loss(model(x[first]), y[first]) / 2).backward()
        (F.mse_loss(model(x[second]), y[second]) / 2).backward()
        optimizer.step()
        optimizer.zero_grad()

stop()
