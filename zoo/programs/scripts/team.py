"""What the scripts of one team share: how they start, the data they draw, and the plain loop.

A script has in full what is its own: the model, the loss, the update, or how ranks divide them.
"""

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

import ttrace


def start():
    """This rank and how many there are, in a process group; what is random next is the model."""
    dist.init_process_group("gloo")
    torch.manual_seed(1)
    return dist.get_rank(), dist.get_world_size()


def stop():
    dist.destroy_process_group()


def make_mlp():
    return nn.Sequential(nn.Linear(16, 32), nn.GELU(), nn.LayerNorm(32), nn.Linear(32, 4))


class Block(nn.Module):
    """A residual MLP with a norm in front."""

    def __init__(self):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(16), nn.Linear(16, 32), nn.Linear(32, 16)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def share(count):
    """The part of so many samples that this rank has."""
    rank, world = dist.get_rank(), dist.get_world_size()
    return slice(rank * count // world, (rank + 1) * count // world)


def generate():
    """The generator of data, the same on every rank."""
    return torch.Generator().manual_seed(2)


def draw(steps, *shapes):
    """For every step tensors of these shapes: the whole batch."""
    random = generate()
    for _ in range(steps):
        yield [torch.randn(shape, generator=random) for shape in shapes]


def draw_share(steps, *shapes):
    """For every step tensors of these shapes: the part of this rank."""
    for batch in draw(steps, *shapes):
        yield [tensor[share(len(tensor))] for tensor in batch]


def draw_text(steps, words, shape):
    """For every step the part of this rank of a batch of tokens."""
    random = generate()
    for _ in range(steps):
        yield [torch.randint(words, shape, generator=random)[share(shape[0])]]


def predict_next(logits, tokens):
    """The loss of a language model that was given all tokens but the last."""
    return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


def average_gradients(model):
    """What DistributedDataParallel does, without it."""
    for parameter in model.parameters():
        dist.all_reduce(parameter.grad)
        parameter.grad /= dist.get_world_size()


def train(model, batches, loss_of, optimizer=None):
    """One forward, backward and update for every batch, then the end of the process group."""
    optimizer = optimizer or torch.optim.AdamW(model.parameters(), lr=1e-3)
    tracer = ttrace.attach(model, optimizer)
    for batch in batches:
        with tracer.step():
            loss_of(*batch).backward()
            optimizer.step()
            optimizer.zero_grad()
    stop()
