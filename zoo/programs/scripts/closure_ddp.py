"""An MLP whose optimizer is given a closure, as Lightning does."""

import torch
from team import draw_share, make_mlp, start, stop
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = DistributedDataParallel(make_mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

for x, y in draw_share(2, (8, 16), (8, 4)):

    def closure(x=x, y=y):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 0.5)
        return loss

    with tracer.step():
        optimizer.step(closure)

stop()
