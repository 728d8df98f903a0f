"""Witnesses tell what was rounded from what is coarse by itself."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ttrace.measure.rounding import ENOUGH, Witnesses


def count(coarse: Tensor, fine: Tensor, mantissa_bits: int = 7) -> int:
    witnesses = Witnesses(mantissa_bits)
    witnesses.add(coarse, fine)
    return witnesses.count


def random(count: int = 1000) -> Tensor:
    return torch.randn(count, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        (torch.bfloat16, 7),
        (torch.float16, 10),
        (torch.float8_e4m3fn, 3),
        (torch.float8_e5m2, 2),
    ],
    ids=str,
)
def test_what_was_rounded_has_many(dtype: torch.dtype, bits: int) -> None:
    fine = random()
    assert count(fine.to(dtype), fine, bits) > 20
    assert count(fine.to(dtype).float(), fine, bits) > 20


def test_no_more_are_counted_than_are_enough() -> None:
    witnesses = Witnesses(7)
    for part in random(100_000).split(1000):
        witnesses.add(part.bfloat16(), part)
    assert witnesses.count == ENOUGH
    assert witnesses.are_enough


@pytest.mark.parametrize("value", [1.0, 0.0, 0.3])
def test_a_value_that_stands_everywhere_is_one_at_most(value: float) -> None:
    assert count(torch.full((1000,), value).bfloat16(), random()) <= 1


def test_the_last_place_of_a_finer_format_is_none() -> None:
    coarse = random().bfloat16().float()
    noisy = coarse * (1 + 1e-6 * random().sign())
    assert not torch.equal(noisy, coarse)
    assert count(coarse, noisy) == 0


def test_zeros_and_infinities_are_none() -> None:
    assert count(torch.zeros(1000), random()) == 0
    assert count(torch.full((1000,), torch.inf), random()) == 0
    assert count(random(), torch.full((1000,), torch.nan)) == 0


def test_equal_values_of_both_are_none() -> None:
    coarse = random().bfloat16()
    assert count(coarse, coarse.float()) == 0
