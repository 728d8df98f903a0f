"""Stochastic rounding in perturbed runs: other numbers decide, and all else that is drawn stays."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ttrace.adapters.base import Adapter
from ttrace.capture.noise import Noise
from ttrace.capture.regroup import Regrouping

X = 3 * torch.randn(64, 64, generator=torch.Generator().manual_seed(1))


def by_floor(x: Tensor) -> Tensor:
    return torch.floor(x + torch.rand_like(x))


def by_shifted_round(x: Tensor) -> Tensor:
    return torch.round(x + (torch.rand(x.shape) - 0.5))


def by_fraction(x: Tensor) -> Tensor:
    down = x.floor()
    return torch.where(torch.rand_like(x) < x - down, down + 1, down)


def by_bits(x: Tensor) -> Tensor:
    drawn = torch.randint(1 << 16, x.shape, dtype=torch.int32)
    return ((x.view(torch.int32) + drawn) & ~0xFFFF).view(torch.float32)


def by_fraction_of_bits(x: Tensor) -> Tensor:
    bits, drawn = x.view(torch.int32), torch.randint(1 << 16, x.shape, dtype=torch.int32)
    kept = bits & ~0xFFFF
    return torch.where(drawn < (bits & 0xFFFF), kept + 0x10000, kept).view(torch.float32)


def by_place_between(x: Tensor) -> Tensor:
    """On a grid that is not one of whole numbers."""
    grid = torch.arange(-20.0, 20.0, 0.5)
    place = torch.bucketize(x, grid, right=True).clamp(1, len(grid) - 1)
    down, up = grid[place - 1], grid[place]
    return torch.where(torch.rand_like(x) < (x - down) / (up - down), up, down)


WAYS = [by_floor, by_shifted_round, by_fraction, by_bits, by_fraction_of_bits, by_place_between]


def run(work: Callable[[Tensor], Tensor], noise_seed: int | None) -> Tensor:
    torch.manual_seed(0)
    if noise_seed is None:
        return work(X.clone())
    with Regrouping(Noise(noise_seed, Adapter(nn.Identity())), [X.shape]):
        return work(X.clone())


@pytest.mark.parametrize("way", WAYS)
class TestStochasticRounding:
    def test_is_drawn_anew(self, way: Callable[[Tensor], Tensor]) -> None:
        plain, first, second = (run(way, seed) for seed in (None, 1, 2))
        share = (plain != first).float().mean()
        assert 0.2 < share < 0.5  # a third of uniform fractions
        assert not first.equal(second)
        assert first.equal(run(way, 1))

    def test_has_no_bias(self, way: Callable[[Tensor], Tensor]) -> None:
        moved = run(way, 1) - X
        assert moved.mean().abs() < 4 * moved.std() / X.numel() ** 0.5

    def test_in_backward_too(self, way: Callable[[Tensor], Tensor]) -> None:
        class Rounded(torch.autograd.Function):
            @staticmethod
            def forward(ctx: object, x: Tensor) -> Tensor:
                return x.clone()

            @staticmethod
            def backward(ctx: object, *grads: Tensor) -> Tensor:
                return way(grads[0])

        def gradient(x: Tensor) -> Tensor:
            x.requires_grad_()
            (Rounded.apply(x) * X).sum().backward()
            assert x.grad is not None
            return x.grad

        assert 0.2 < (run(gradient, None) != run(gradient, 1)).float().mean() < 0.5


@pytest.mark.parametrize(
    "work",
    [
        torch.rand_like,
        lambda x: torch.where(torch.rand_like(x) < 0.1, 0.0, x),
        lambda x: x + torch.rand_like(x),
        lambda x: torch.randint(9, x.shape).float(),
        lambda x: torch.nn.functional.dropout(x, 0.1),
        lambda x: (torch.arange(64) < torch.randint(30, (64, 1))).float(),
        lambda x: torch.where(torch.rand_like(x) < torch.full_like(x, 0.15), 0.0, x),
        lambda x: torch.floor(x + 30 * torch.rand_like(x)),
        lambda x: ((10 * x).int() + torch.randint(50, x.shape, dtype=torch.int32)) & 0xFF,
    ],
    ids=[
        "noise",
        "chance",
        "sum",
        "tokens",
        "dropout",
        "prompts of some length",
        "mask by probabilities",
        "start of some crop",
        "hash",
    ],
)
def test_what_is_drawn_for_something_else_stays(work: Callable[[Tensor], Tensor]) -> None:
    assert run(work, 1).equal(run(work, None))


@pytest.mark.parametrize("is_updating", [True, False])
@pytest.mark.parametrize(("work", "rounds"), [(by_bits, True), (torch.rand_like, False)])
def test_an_optimizer_that_rounds_by_chance_is_told(
    work: Callable[[Tensor], Tensor], *, rounds: bool, is_updating: bool
) -> None:
    mode = Regrouping(Noise(1, Adapter(nn.Identity())), [X.shape])
    mode.is_updating = is_updating
    with mode:
        work(X.clone())
    assert mode.rounds_updates() == (rounds and is_updating)
