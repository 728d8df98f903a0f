"""A GAN: a generator and a critic that take turns, each with its optimizer."""

import torch
from team import draw_share, start, stop
from torch import nn
from torch.nn import functional as F
from torch.nn.parallel import DistributedDataParallel

import ttrace

rank, world = start()
generator = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 16), nn.Tanh())
critic = nn.Sequential(nn.Linear(16, 32), nn.LeakyReLU(0.2), nn.Linear(32, 1))
generator, critic = DistributedDataParallel(generator), DistributedDataParallel(critic)
generator_optimizer = torch.optim.Adam(generator.parameters(), lr=2e-4, betas=(0.5, 0.999))
critic_optimizer = torch.optim.Adam(critic.parameters(), lr=2e-4, betas=(0.5, 0.999))
tracer = ttrace.attach(
    {"generator": generator, "critic": critic}, [generator_optimizer, critic_optimizer]
)

for real, noise in draw_share(2, (8, 16), (8, 8)):
    ones, zeros = torch.ones(8 // world, 1), torch.zeros(8 // world, 1)
    with tracer.step():
        critic_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(critic(real), ones).backward()
        fake = generator(noise)
        F.binary_cross_entropy_with_logits(critic(fake.detach()), zeros).backward()
        critic_optimizer.step()

        generator_optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(critic(fake), ones).backward()
        generator_optimizer.step()

stop()
