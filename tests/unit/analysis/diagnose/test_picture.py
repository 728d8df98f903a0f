"""The drawing of a suspect, against one made element by element."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from ttrace.analysis.diagnose.picture import WORST_ROWS, Picture
from ttrace.trace.blocks import blocks

SHAPES = [(5, 7), (70, 3), (2, 3, 130), (130,), (65, 65), (1, 1)]


def pair(shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> tuple[torch.Tensor, ...]:
    generator = torch.Generator().manual_seed(0)
    whole = torch.randn(shape, generator=generator).to(dtype)
    return whole, (whole + 0.1 * torch.randn(shape, generator=generator)).to(dtype)


def drawn(expected: torch.Tensor, found: torch.Tensor, budget: int) -> Picture:
    shape = tuple(expected.shape)
    cells = min(64, math.prod(shape[:-1])), min(64, shape[-1])
    picture = Picture(shape, cells)
    for start, stop in blocks(shape, budget):
        window = tuple(map(slice, start, stop))
        picture.add(expected[window], found[window], start)
    return picture


def oracle(expected: torch.Tensor, found: torch.Tensor) -> list[list[float]]:
    width = expected.shape[-1]
    error = (found.double() - expected.double()).reshape(-1, width)
    high, wide = min(64, len(error)), min(64, width)
    squares, counts = np.zeros((high, wide)), np.zeros((high, wide))
    for row in range(len(error)):
        for column in range(width):
            cell = row * high // len(error), column * wide // width
            squares[cell] += float(error[row, column]) ** 2
            counts[cell] += 1
    means: list[list[float]] = np.sqrt(squares / counts).tolist()
    return means


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("budget", [1, 10, 100, 1 << 20])
def test_tiles_do_not_depend_on_the_boxes(shape: tuple[int, ...], budget: int) -> None:
    expected, found = pair(shape)
    picture = drawn(expected, found, budget)
    for line, known in zip(picture.tiles(), oracle(expected, found), strict=True):
        assert list(line) == pytest.approx(known, rel=0.06)  # two digits
    assert picture.examined == sum(picture.ulp()) == expected.numel()
    rms = float(expected.double().square().mean().sqrt())
    assert picture.reference_rms == pytest.approx(rms)


@pytest.mark.parametrize("special", [math.nan, math.inf, -math.inf])
def test_what_is_not_finite_is_left_out(special: float) -> None:
    expected, found = pair((16, 16))
    expected[2, 2] = found[2, 2] = 0.0
    clean = drawn(expected, found, 100)
    found[2, 2] = special
    broken = drawn(expected, found, 100)
    assert broken.tiles() == clean.tiles()
    assert broken.reference_rms == clean.reference_rms
    assert sum(broken.ulp()) == sum(clean.ulp()) - 1
    assert broken.ulp()[1:] == clean.ulp()[1:]


def test_worst_rows_are_the_worst_of_all_boxes() -> None:
    expected, _ = pair((40, 16))
    found = expected.clone()
    for row in range(20):
        found[2 * row] += row + 1
    picture = drawn(expected, found, 48)
    worst = sorted(row for row in picture._worst)
    assert worst == [2 * row for row in range(20 - WORST_ROWS, 20)]


def test_the_coarser_dtype_counts_its_steps() -> None:
    expected = torch.ones(4, 4)
    found = expected.bfloat16()
    found[0, 0] += torch.finfo(torch.bfloat16).eps
    assert drawn(expected, found, 100).ulp() == (15, 1)


def test_whole_numbers_have_no_steps() -> None:
    assert drawn(torch.ones(4, 4).long(), torch.ones(4, 4).long(), 100).ulp() == ()
