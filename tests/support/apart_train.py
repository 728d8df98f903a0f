"""Linears that quantise with one scale for all that they are given, on ranks that share a batch."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

import ttrace

WIDTH, SAMPLES, LENGTH = 64, 8, 32
_LARGEST = 448.0


@dataclass(frozen=True, kw_only=True)
class Program:
    """How ranks take samples and scales, and what is wrong.

    `codes`: whether anything is quantised. `agrees`: ranks take the maximum over all of them.
    `takes_turns`: rank r has samples r, r + n ...
    `between`: values are quantised between the calls of modules, too. `plant`: the module whose
    output has a wrong scale.
    """

    codes: bool = True
    agrees: bool = False
    takes_turns: bool = False
    flattens: bool = False
    between: bool = False
    microbatches: int = 1
    plant: str = ""


def quantised(x: Tensor, program: Program) -> Tensor:
    if not program.codes:
        return x.detach()
    amax = x.detach().abs().amax()
    if program.agrees and dist.is_initialized() and dist.get_world_size() > 1:
        dist.all_reduce(amax, dist.ReduceOp.MAX)
    scale = _LARGEST / amax
    return (x.detach() * scale).to(torch.float8_e4m3fn).float() / scale


class _Product(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, program: Program, wrong: bool) -> Tensor:
        ctx.program = program
        codes = quantised(x, program), quantised(weight, program)
        ctx.save_for_backward(*codes)
        return codes[0] @ codes[1].T * (1.03 if wrong else 1.0)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, None, None]:
        x, weight = ctx.saved_tensors
        grad = quantised(grads[0], ctx.program)
        of_weight = grad.flatten(0, -2).T @ x.flatten(0, -2)
        return grad @ weight, of_weight, None, None


class Quantising(nn.Linear):
    program: Program
    wrong = False

    def forward(self, x: Tensor) -> Tensor:
        product: Tensor = _Product.apply(x, self.weight, self.program, self.wrong)
        return product + self.bias


class Block(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.program = program
        self.up, self.down = Quantising(WIDTH, WIDTH), Quantising(WIDTH, WIDTH)
        self.up.program = self.down.program = program

    def forward(self, x: Tensor) -> Tensor:
        shape = x.shape
        if self.program.flattens:
            x = x.flatten(0, 1)
        hidden = torch.tanh(self.up(x))
        if self.program.between:
            hidden = hidden + (quantised(hidden, self.program) - hidden).detach()
        return (x + self.down(hidden)).view(shape)


class Model(nn.Module):
    def __init__(self, program: Program) -> None:
        super().__init__()
        self.first = nn.Linear(WIDTH, WIDTH)
        self.blocks = nn.ModuleList(Block(program) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        return x


def train(program: Program) -> None:
    torch.manual_seed(0)
    model = Model(program)
    if program.plant:
        wrong = model.get_submodule(program.plant)
        assert isinstance(wrong, Quantising)
        wrong.wrong = True
    ranks, rank = (dist.get_world_size(), dist.get_rank()) if dist.is_initialized() else (1, 0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    batch = torch.randn(SAMPLES, LENGTH, WIDTH) * torch.linspace(1, 3, SAMPLES)[:, None, None]
    own = batch[rank::ranks] if program.takes_turns else batch.chunk(ranks)[rank]
    with tracer.step():
        for part in own.chunk(program.microbatches):
            (model(part).square().mean() / program.microbatches).backward()
        for parameter in model.parameters():
            if ranks > 1 and parameter.grad is not None:
                dist.all_reduce(parameter.grad)
                parameter.grad /= ranks
        optimizer.step()
