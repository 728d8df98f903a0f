"""Parts that were rounded by the same random numbers are told from all others."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from ttrace.measure.rounding import Coincidence, coincidence, roundings

SHAPE = (64, 48)


def draws(seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(1 << 16, SHAPE, generator=generator, dtype=torch.int32)


def values(seed: int) -> Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed))


def rounded(x: Tensor, seed: int) -> Tensor:
    """Away from zero, as often as the bits that are cut off say."""
    return ((x.view(torch.int32) + draws(seed)) & -65536).view(torch.float32).bfloat16()


def shifted(x: Tensor, seed: int) -> Tensor:
    """Towards more, as often as it is nearer to that."""
    unit = torch.exp2(torch.frexp(x).exponent - 8.0)
    return (torch.floor(x / unit + draws(seed) / (1 << 16)) * unit).bfloat16()


def found(first: int, second: int, sense: int = 1, way: object = rounded) -> Coincidence:
    """Of two parts, each against a reference that draws for itself."""
    assert callable(way)
    sides = (
        roundings(way(values(n), 100 + n), way(values(n), seed), 7)[sense]
        for n, seed in ((1, first), (2, second))
    )
    return coincidence(next(sides), next(sides))


@pytest.mark.parametrize(("way", "sense"), [(rounded, 1), (shifted, 0)])
def test_the_same_numbers_correlate_in_place_alone(way: object, sense: int) -> None:
    told = found(7, 7, sense, way)
    in_place, *elsewhere = told.deviations
    assert in_place > 10
    assert max(map(abs, elsewhere)) < 4
    assert told.correlation == pytest.approx(0.25, abs=0.06)


@pytest.mark.parametrize("sense", [0, 1])
@pytest.mark.parametrize("way", [rounded, shifted])
def test_other_numbers_do_not(way: object, sense: int) -> None:
    told = found(7, 8, sense, way)
    assert max(map(abs, told.deviations)) < 4
    assert abs(told.correlation) < 0.06


def test_what_a_column_has_in_common_shows_elsewhere_as_well() -> None:
    column = torch.randint(-1, 2, (1, SHAPE[1])).double().expand(SHAPE)
    told = coincidence(column, column)
    assert min(told.deviations) == max(told.deviations) > 10


def test_sums_of_several_tensors_add_up() -> None:
    one = found(7, 7)
    both = one + one
    assert both.correlation == pytest.approx(one.correlation)
    assert both.deviations[0] == pytest.approx(one.deviations[0] * 2**0.5)
    assert (Coincidence() + one) == one


def test_nothing_is_nothing() -> None:
    assert (Coincidence().deviations[0], Coincidence().correlation) == (0.0, 0.0)


def test_roundings_are_units_of_the_last_place() -> None:
    x = torch.tensor([1.0, -1.0, 0.5, 4.0, 0.0, torch.nan])
    y = torch.tensor([1.0 + 2**-7, -1.0 - 2**-7, 0.5, 4.0 + 8 * 2**-5, 0.0, 1.0])
    more, away = roundings(x, y, 7)
    assert more.tolist() == [1, -1, 0, 0, 0, 0]  # the fourth is further off than a rounding
    assert away.abs().tolist() == more.abs().tolist()
    assert away.tolist()[:2] == [1, 1]
