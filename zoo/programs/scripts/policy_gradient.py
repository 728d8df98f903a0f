"""REINFORCE on a toy: the policy gets one state of four numbers at a time, without a batch."""

import torch
from team import generate, start, stop
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
policy = DistributedDataParallel(policy)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
tracer = ttrace.attach(policy, optimizer)

random = generate()
for _ in range(2):
    states = torch.randn(6, 4, generator=random)
    actions = torch.randint(2, (6,), generator=random)
    returns = torch.randn(6, generator=random)
    mine = range(rank * 6 // world, (rank + 1) * 6 // world)
    with tracer.step():
        for index in mine:
            chosen = policy(states[index]).log_softmax(dim=0)[actions[index]]
            (-chosen * returns[index] / len(mine)).backward()
        optimizer.step()
        optimizer.zero_grad()

stop()
