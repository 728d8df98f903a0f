"""A moving average of the weights is kept beside the model, as diffusion models are trained."""

import torch
from team import generate, share, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = nn.Sequential(nn.Linear(17, 32), nn.SiLU(), nn.Linear(32, 16))
average = torch.optim.swa_utils.AveragedModel(
    model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
)
model = DistributedDataParallel(model)
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random, mine = generate(), share(8)
for _ in range(2):
    x, noise = torch.randn(8, 16, generator=random), torch.randn(8, 16, generator=random)
    time = torch.rand(8, 1, generator=random)
    with tracer.step():
        noisy = (1 - time) * x + time * noise
        made = model(torch.cat([noisy, time], dim=1)[mine])
        F.mse_loss(made, (noise - x)[mine]).backward()
        optimizer.step()
        optimizer.zero_grad()
        average.update_parameters(model.module)

stop()
