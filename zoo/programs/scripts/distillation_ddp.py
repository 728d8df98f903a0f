"""Self-distillation: the model teaches itself, under no_grad, before its own turn."""

import torch
from team import generate, make_mlp, share, start, stop
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
model = DistributedDataParallel(make_mlp())
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
tracer = ttrace.attach(model, optimizer)

random, mine = generate(), share(16)
for _ in range(2):
    x, y = torch.randn(16, 16, generator=random), torch.randint(4, (16,), generator=random)
    weak = x + 0.1 * torch.randn(16, 16, generator=random)
    with tracer.step():
        for part in range(2):
            rows = slice(mine.start + part * 8 // world, mine.start + (part + 1) * 8 // world)
            with torch.no_grad():
                teacher = F.softmax(model(weak[rows]) / 2, dim=-1)
            student = model(x[rows])
            loss = F.cross_entropy(student, y[rows]) + F.cross_entropy(student / 2, teacher)
            (loss / 2).backward()
        optimizer.step()
        optimizer.zero_grad()
        with torch.no_grad():
            model(x[mine])

stop()
