"""Distances in units in the last place, against steps made one by one."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ttrace.measure.rounding import bits_of, count_magnitudes, count_ulps_between

FLOATS = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def distance(left: float, right: float, dtype: torch.dtype) -> int:
    a, b = (bits_of(torch.tensor([value], dtype=dtype)) for value in (left, right))
    return int(count_ulps_between(a, b)[0])


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
@pytest.mark.parametrize("start", [0.0, 1.0, -1.0, 3.0])
def test_neighbours_are_one_apart(dtype: torch.dtype, start: float) -> None:
    first = torch.tensor(start, dtype=dtype)
    up = torch.nextafter(first, torch.tensor(math.inf, dtype=dtype))
    assert distance(float(first), float(up), dtype) == 1
    assert distance(float(up), float(first), dtype) == 1


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_zeros_of_either_sign_are_one(dtype: torch.dtype) -> None:
    assert distance(0.0, -0.0, dtype) == 0


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_the_way_from_end_to_end_does_not_overflow(dtype: torch.dtype) -> None:
    top = torch.finfo(dtype).max
    half = distance(0.0, top, dtype)
    assert half > 0
    assert distance(-top, top, dtype) == 2 * half


def test_magnitudes_count_powers_of_two() -> None:
    apart = np.array([0, 0, 1, 2, 3, 4, 7, 8, 1000], dtype=np.uint32)
    assert count_magnitudes(apart) == [2, 1, 2, 2, 1, 0, 0, 0, 0, 0, 1]
    assert count_magnitudes(apart[:2]) == [2]
    assert count_magnitudes(apart[:0]) == [0]


def test_magnitudes_reach_to_the_largest_distance() -> None:
    for dtype, bits in ((np.uint32, 32), (np.uint64, 64)):
        found = count_magnitudes(np.array([np.iinfo(dtype).max], dtype=dtype))
        assert found == [0] * bits + [1]
