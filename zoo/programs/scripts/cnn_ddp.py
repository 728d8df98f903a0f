"""A classifier of small images: convolutions, group norms, a schedule of the learning rate."""

import torch
from team import generate, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = nn.Sequential(
    *(nn.Conv2d(3, 8, 3, padding=1), nn.GroupNorm(2, 8), nn.ReLU(), nn.MaxPool2d(2)),
    *(nn.Conv2d(8, 16, 3, padding=1), nn.GroupNorm(2, 16), nn.ReLU(), nn.AdaptiveAvgPool2d(1)),
    *(nn.Flatten(), nn.Linear(16, 10)),
)
model = DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=4)
tracer = ttrace.attach(model, optimizer)

random = generate()
for _ in range(3):
    images = torch.randn(8, 3, 12, 12, generator=random)
    labels = torch.randint(10, (8,), generator=random)
    with tracer.step():
        optimizer.zero_grad()
        F.cross_entropy(model(images[rank::world]), labels[rank::world]).backward()
        optimizer.step()
        scheduler.step()

stop()
