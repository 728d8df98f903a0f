"""Noise where codes are made: some flip, by one step, and only where there is a grid."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from ttrace.adapters.base import Adapter
from ttrace.capture.noise import FLIPS, Noise
from ttrace.capture.regroup import Regrouping
from ttrace.capture.regroup.codes import steps

E4M3, E5M2 = torch.float8_e4m3fn, torch.float8_e5m2


def values(count: int = 4096, scale: float = 50.0) -> Tensor:
    return scale * torch.randn(count, generator=torch.Generator().manual_seed(1))


def noisy(work: Callable[[Tensor], Tensor], x: Tensor, seed: int = 1) -> Tensor:
    with Regrouping(Noise(seed, Adapter(nn.Identity()))):
        return work(x)


@pytest.mark.parametrize("dtype", [E4M3, E5M2])
class TestCasts:
    def test_some_codes_flip_and_others_in_another_run(self, dtype: torch.dtype) -> None:
        plain = values().to(dtype).float()
        found = [noisy(lambda x: x.to(dtype), values(), seed).float() for seed in (1, 2)]
        for each in found:
            assert FLIPS / 4 < (each != plain).sum() < FLIPS * 4
        assert not found[0].equal(found[1])

    def test_by_one_step(self, dtype: torch.dtype) -> None:
        plain = values().to(dtype).float()
        moved = noisy(lambda x: x.to(dtype), values()).float()
        # a code at a power of two has a neighbour at half the distance
        assert ((moved - plain).abs() <= steps(plain, dtype)).all()

    def test_of_a_copy_into_codes(self, dtype: torch.dtype) -> None:
        into = torch.empty(4096, dtype=dtype)
        noisy(into.copy_, values())
        assert not into.float().equal(values().to(dtype).float())

    def test_the_largest_stays_in_range(self, dtype: torch.dtype) -> None:
        x = values()
        x = x / x.abs().max() * torch.finfo(dtype).max
        assert noisy(lambda x: x.to(dtype), x).float().isfinite().all()

    def test_zeros_and_whole_numbers_stay(self, dtype: torch.dtype) -> None:
        for x in (torch.zeros(64), torch.arange(64.0), torch.empty(0)):
            assert noisy(lambda x: x.to(dtype), x).float().equal(x.to(dtype).float())

    def test_back_to_values_has_none(self, dtype: torch.dtype) -> None:
        codes = values().to(dtype)
        assert noisy(lambda x: x.float(), codes).equal(codes.float())


def test_rounding_to_whole_numbers_is_a_grid() -> None:
    x = values(scale=3.0)
    assert 0 < (noisy(torch.round, x) != x.round()).sum() < FLIPS * 4


def test_casts_to_wider_dtypes_have_no_noise() -> None:
    x = values()
    assert noisy(lambda x: x.bfloat16(), x).equal(x.bfloat16())
    assert noisy(lambda x: x.double(), x).equal(x.double())


def test_steps_are_those_of_the_dtype() -> None:
    numbers = torch.arange(1, 127, dtype=torch.uint8).view(E4M3).float()
    following = torch.arange(2, 128, dtype=torch.uint8).view(E4M3).float()[:-1]
    assert steps(numbers[:-1], E4M3).equal(following - numbers[:-1])


def test_few_values_flip_seldom_but_do() -> None:
    x = values(8)
    found = [noisy(lambda x: x.to(E4M3), x, seed).float() for seed in range(1, 9)]
    assert any(not each.equal(x.to(E4M3).float()) for each in found)
