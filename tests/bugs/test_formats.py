"""Emulated formats, bit for bit: against torch's own casts, and tables of all their numbers."""

from __future__ import annotations

from itertools import pairwise

import pytest
import torch

from zoo.lowprecision.formats import (
    E2M1,
    E4M3,
    E5M2,
    e8m0_exponents,
    largest,
    to_bf16_stochastic,
    to_e2m1,
    to_e2m1_stochastic,
    to_e8m0,
    to_float8,
)
from zoo.lowprecision.linear import emulated, scaled
from zoo.lowprecision.schemes import Blockwise, Mx, Nv, Operand, Rowwise, Scheme, Tensorwise


def drawn(rows: int = 64, columns: int = 64) -> torch.Tensor:
    return 3 * torch.randn(rows, columns, generator=torch.Generator().manual_seed(1))


class TestE2M1:
    def test_every_number_is_on_the_grid(self) -> None:
        numbers = torch.tensor([*E2M1, *(-number for number in E2M1)])
        assert to_e2m1(numbers).equal(numbers)

    def test_the_nearest_number_is_taken(self) -> None:
        x = torch.linspace(-6, 6, 12_001)
        grid = torch.tensor(E2M1)
        nearest = (x.abs()[:, None] - grid).abs().min(1).values
        assert (to_e2m1(x) - x).abs().allclose(nearest, atol=1e-6)

    def test_of_two_the_even_code(self) -> None:
        for code, (low, high) in enumerate(pairwise(E2M1)):
            expected = low if code % 2 == 0 else high
            assert to_e2m1(torch.tensor((low + high) / 2)) == expected

    def test_beyond_is_the_largest(self) -> None:
        assert to_e2m1(torch.tensor([7.0, -100.0])).tolist() == [6.0, -6.0]

    def test_by_chance_it_is_right_on_average(self) -> None:
        x = torch.full((100_000,), 2.3)
        found = to_e2m1_stochastic(x, torch.Generator().manual_seed(0))
        assert set(found.tolist()) == {2.0, 3.0}
        assert abs(found.mean() - 2.3) < 0.01


class TestE8M0:
    @pytest.mark.parametrize("exponent", range(-119, 120, 7))
    def test_is_the_exponent_less_that_of_the_largest_number(self, exponent: int) -> None:
        for mantissa in (1.0, 1.5, 1.9999):
            amax = torch.tensor(mantissa * 2.0**exponent)
            assert e8m0_exponents(amax, 8) == max(exponent - 8, -127)

    def test_codes_are_those_of_torch(self) -> None:
        exponents = torch.arange(-127, 128)
        assert to_e8m0(exponents).float().equal(torch.exp2(exponents.float()))


class TestFloat8:
    @pytest.mark.parametrize("dtype", [E4M3, E5M2])
    def test_every_number_stays(self, dtype: torch.dtype) -> None:
        numbers = torch.arange(256).to(torch.uint8).view(dtype)
        finite = numbers[numbers.float().isfinite()]
        assert to_float8(finite.float(), dtype).view(torch.uint8).equal(finite.view(torch.uint8))

    @pytest.mark.parametrize("dtype", [E4M3, E5M2])
    def test_what_is_too_large_saturates(self, dtype: torch.dtype) -> None:
        assert to_float8(torch.tensor([1e9]), dtype).float() == largest(dtype)
        assert not to_float8(torch.tensor([1e9]), dtype, saturates=False).float().isfinite()


def test_bf16_by_chance_is_right_on_average() -> None:
    x = torch.full((100_000,), 1.002)
    found = to_bf16_stochastic(x, torch.Generator().manual_seed(0)).float()
    assert set(found.tolist()) == {1.0, 1.0078125}
    assert abs(found.mean() - 1.002) < 1e-4


@pytest.mark.parametrize("scheme", [Tensorwise(), Rowwise(), Blockwise(), Mx(), Nv()])
@pytest.mark.parametrize("operand", Operand)
def test_a_scheme_gives_nearly_the_values(scheme: Scheme, operand: Operand) -> None:
    found = scheme.quantise(drawn(), operand, None).values()
    assert (found - drawn()).norm() < 0.12 * drawn().norm()
    again = scheme.quantise(found, operand, None).values()
    assert (again - found).norm() < 0.05 * found.norm()


@pytest.mark.parametrize("scheme", [Tensorwise(), Rowwise()])
def test_products_of_codes_are_those_of_the_device(scheme: Scheme) -> None:
    a = scheme.quantise(drawn().bfloat16(), Operand.GRADIENT, None)
    b = scheme.quantise(drawn(32).bfloat16(), Operand.WEIGHT, None)
    of_device = scaled(a, b, torch.bfloat16)
    assert of_device.equal(emulated(a, b, torch.bfloat16))


@pytest.mark.extras
def test_mx_is_that_of_torchao() -> None:
    mx = pytest.importorskip("torchao.prototype.mx_formats.mx_tensor")
    scales, codes = mx.to_mx(drawn(), torch.float8_e4m3fn, 32)
    found = Mx().quantise(drawn(), Operand.INPUT, None)
    assert found.codes.view(torch.uint8).equal(codes.view(torch.uint8))
    assert found.scales.equal(scales.float())
