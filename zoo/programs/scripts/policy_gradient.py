"""REINFORCE on a toy: the policy gets one state of four numbers at a time, without a batch."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
policy = nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 2))
policy = DistributedDataParallel(policy)
optimizer = torch.optim.Adam(policy.parameters(), lr=1e-2)
tracer = ttrace.attach(policy, optimizer)

generator = torch.Generator().manual_seed(2)
for _ in range(2):
    states = torch.randn(6, 4, generator=generator)
    actions = torch.randint(2, (6,), generator=generator)
    returns = torch.randn(6, generator=generator)
    mine = range(rank * 6 // world, (rank + 1) * 6 // world)
    with tracer.step():
        for index in mine:
            chosen = policy(states[index]).log_softmax(dim=0)[actions[index]]
            (-chosen * returns[index] / len(mine)).backward()
        optimizer.step()
        optimizer.zero_grad()

dist.destroy_process_group()
