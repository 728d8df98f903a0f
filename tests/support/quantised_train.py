"""A model whose layers hand codes and scales on, trained on a share of the batch by each rank."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ttrace
from tests.support.kept import Kept
from ttrace.core.blame import Mistake

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2
WIDTH = 64


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """How a run quantises, and what is wrong with it."""

    steps: int = 1
    plant: str = ""


ONE, TWO = Recipe(), Recipe(steps=2)
# What is planted, by the name that `plant` takes, and what kind of mistake it is.
PLANTS = {
    "wrong scale on one rank": (ONE, Mistake.WRONG_SCALE),
    "codes cut off": (ONE, Mistake.WRONG_CODES),
    "amax of each rank": (ONE, Mistake.SCALE_OF_EACH_PART),
    "another format": (ONE, Mistake.OTHER_CODES),
    "stale scale": (TWO, Mistake.STALE_SCALE),
    "amax of another tensor": (ONE, Mistake.OTHER_SCALE),
    "scales of rows": (ONE, Mistake.OTHER_BLOCKS),
}


class Quantise(nn.Module):
    """One scale for the whole batch, by which values are multiplied before they are cast."""

    def __init__(self, plant: str) -> None:
        super().__init__()
        self.plant = plant
        self.last: Tensor | None = None

    def forward(self, x: Tensor) -> Kept:
        values, dtype = x.detach(), E5M2 if self.plant == "another format" else E4M3
        by_rows = self.plant == "scales of rows"
        amax = values.abs().amax(1, keepdim=True) if by_rows else values.abs().amax()
        if dist.is_initialized() and self.plant not in ("amax of each rank", "scales of rows"):
            dist.all_reduce(amax, dist.ReduceOp.MAX)
        if self.plant == "amax of another tensor":
            amax = 3.7 * amax
        scale = torch.finfo(dtype).max / amax
        if self.plant == "stale scale" and self.last is not None:
            scale, self.last = self.last, scale
        else:
            self.last = scale
        scaled = (values * scale).clamp(-torch.finfo(dtype).max, torch.finfo(dtype).max)
        if self.plant == "codes cut off":
            scaled = scaled - 0.03 * scaled.abs()
        codes = scaled.to(dtype)
        if self.plant == "wrong scale on one rank" and dist.get_rank() == 1:
            scale = scale * 1.5
        return Kept(codes.float() / scale, _data=codes, _scale=scale, _orig_dtype=values.dtype)


class Use(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, x: Tensor, kept: Kept) -> Tensor:
        return x + torch.tanh(kept.dequantize() @ self.weight)


class Model(nn.Module):
    def __init__(self, plant: str) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.quantise = Quantise(plant)
        self.use = Use()

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        return self.use(x, self.quantise(x))


def train(recipe: Recipe) -> None:
    torch.manual_seed(0)
    model = Model(recipe.plant)
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    tracer = ttrace.attach(model, optimizer)
    batches = torch.randn(recipe.steps, 64, WIDTH) * torch.linspace(1, 2, 64)[:, None]
    for step in range(recipe.steps):
        with tracer.step():
            optimizer.zero_grad()
            model(batches[step].chunk(ranks)[rank] * (1 + 0.4 * step)).square().mean().backward()
            for parameter in model.parameters():
                if ranks > 1 and parameter.grad is not None:
                    dist.all_reduce(parameter.grad)
                    parameter.grad /= ranks
            optimizer.step()
