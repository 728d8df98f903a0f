"""A GAN: a generator and a critic that take turns, each with its optimizer."""

import os

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

dist.init_process_group("gloo")
rank, world = dist.get_rank(), int(os.environ["WORLD_SIZE"])

torch.manual_seed(1)
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())
critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator, critic = DistributedDataParallel(generator), DistributedDataParallel(critic)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
tracer = ttrace.attach(
    {"generator": generator, "critic": critic}, [generator_optimizer, critic_optimizer]
)

random = torch.Generator().manual_seed(2)
for _ in range(2):
    real, noise = torch.randn(8, 16, generator=random), torch.randn(8, 8, generator=random)
    mine = slice(rank * 8 // world, (rank + 1) * 8 // world)
    ones, zeros = torch.ones(8 // world, 1), torch.zeros(8 // world, 1)
    with tracer.step():
        critic_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(critic(real[mine]), ones).backward()
        fake = generator(noise[mine])
        F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros).backward()
        critic_optimizer.step()

        generator_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake), ones).backward()
        generator_optimizer.step()

dist.destroy_process_group()
