"""Formats against torch, which has most of them, and against the tables of their standards."""

from __future__ import annotations

import math

import pytest
import torch

from ttrace.core.formats import COMPUTED_IN, Format, coarsest, format_of, grain, values_of

IN_TORCH = [
    *("float8_e5m2", "float8_e5m2fnuz", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e8m0fnu"),
    *("bfloat16", "float16"),
]
WIDE = ["float32", "float64"]


def known(name: str) -> Format:
    found = format_of(name)
    assert found is not None
    return found


def torch_values(dtype: torch.dtype, bits: int) -> torch.Tensor:
    codes = torch.arange(1 << bits).to(torch.uint8 if bits == 8 else torch.int16)
    return codes.view(dtype).double()


@pytest.mark.parametrize("name", IN_TORCH)
def test_every_code_is_the_number_that_torch_reads(name: str) -> None:
    found = torch.tensor(values_of(name), dtype=torch.float64)
    expected = torch_values(getattr(torch, name), known(name).bits)
    assert torch.equal(found.isnan(), expected.isnan())
    assert torch.equal(found.nan_to_num(), expected.nan_to_num())


@pytest.mark.parametrize("name", [*IN_TORCH, *WIDE])
def test_ranges_are_those_of_torch(name: str) -> None:
    info, found = torch.finfo(getattr(torch, name)), known(name)
    assert (found.largest, found.smallest_normal) == (info.max, info.smallest_normal)
    assert found.bits == info.bits


@pytest.mark.parametrize("name", [*IN_TORCH[:-2], *WIDE, "bfloat16", "float16"])
def test_eps_is_the_distance_of_one_to_the_next_number(name: str) -> None:
    found = known(name)
    assert found.eps == 2.0**-found.mantissa_bits
    if found.bits <= 16:
        above = min(value for value in values_of(name) if value > 1)
        assert above - 1 == found.eps


def test_the_smallest_number_is_the_first_above_zero() -> None:
    for name in ("float8_e5m2", "float8_e4m3fnuz", "float16", "bfloat16", "float8_e8m0fnu"):
        above = [value for value in values_of(name) if value > 0]
        assert min(above) == known(name).smallest


def test_four_bits_are_the_numbers_of_the_ocp_standard() -> None:
    positive = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
    assert values_of("float4_e2m1fn") == (*positive, *(-value for value in positive))
    assert known("float4_e2m1fn").largest == 6.0


def test_whole_numbers_have_no_format() -> None:
    assert format_of("int32") is None
    assert format_of("complex64") is None


@pytest.mark.parametrize(
    ("value", "used"), [(1.0, 0), (-2.0, 0), (1.5, 1), (0.75, 1), (1.75, 2), (0.1, 51), (1 / 3, 52)]
)
def test_the_grain_of_a_number_is_the_bits_behind_its_leading_one(value: float, used: int) -> None:
    bits = int(torch.tensor(value, dtype=torch.float64).view(torch.int64)) & ((1 << 52) - 1)
    assert grain(bits) == used


def test_the_grain_of_several_is_that_of_all_their_bits() -> None:
    half, quarter = 1 << 51, 1 << 50
    assert grain(half | quarter) == 2
    assert grain(0) == 0


def test_a_grain_is_called_by_the_coarsest_format_that_holds_it() -> None:
    names = [coarsest(used).name for used in (0, 1, 2, 3, 4, 7, 8, 10, 11, 23, 24, 52)]
    assert names == [
        *("float4_e2m1fn", "float4_e2m1fn", "float8_e5m2", "float8_e4m3fn"),
        *("bfloat16", "bfloat16", "float16", "float16", "float32", "float32"),
        *("float64", "float64"),
    ]
    assert [found.mantissa_bits for found in COMPUTED_IN] == sorted(
        {found.mantissa_bits for found in COMPUTED_IN}
    )


def test_what_is_no_number_is_neither_an_infinity_in_formats_without() -> None:
    assert math.isnan(known("float8_e4m3fn").decode(0x7F))
    assert known("float8_e5m2").decode(0xFC) == -math.inf
