"""Cells: signs that see every error, sums that add up and merge, and sizes that fit layouts."""

from __future__ import annotations

import numpy as np
import pytest

from tests.support.sketching import exact_sums
from ttrace.measure.cells import FEWEST, Cells, choose_cells, merged, norm_of, signs

GENERATOR = np.random.default_rng(0)


@pytest.mark.parametrize("size", [1, 2, 64, 2048])
def test_a_pair_of_signs_sees_the_whole_energy_of_every_wave(size: int) -> None:
    first, second = (np.abs(np.fft.fft(row, 2 * size)) ** 2 for row in signs(size))
    assert first + second == pytest.approx(2 * size, rel=1e-5)


def test_a_single_set_of_signs_would_not() -> None:
    assert (np.abs(np.fft.fft(signs(64)[0], 128)) ** 2).max() > 1.5 * 64


@pytest.mark.parametrize("sizes", [(1, 8), (4, 8), (2, 16), (1, 1)])
def test_cells_merge_to_those_that_larger_ones_would_have_been(sizes: tuple[int, int]) -> None:
    values = GENERATOR.normal(size=(13, 100))  # the last cells are cut off
    small = exact_sums(values, Cells(sizes, (0, 0)))
    large = exact_sums(values, Cells((4, 32), (0, 0)))
    assert merged(small, sizes, (4, 32)) == pytest.approx(large, abs=1e-10)


def test_merging_neighbours_the_other_way_round_is_another_sum() -> None:
    values = GENERATOR.normal(size=32)
    small = exact_sums(values, Cells((16,), (0,)))
    large = exact_sums(values, Cells((32,), (0,)))
    assert merged(small[::-1].copy(), (16,), (32,)) != pytest.approx(large)


@pytest.mark.parametrize(
    "error",
    [
        np.full((64, 1024), 0.5),
        np.outer(np.ones(64), GENERATOR.normal(size=1024)),
        np.outer(GENERATOR.normal(size=64), np.ones(1024)),
        GENERATOR.normal(size=(64, 1024)),
        np.where(np.arange(64)[:, None] == 17, GENERATOR.normal(size=1024), 0.0),
    ],
    ids=["constant", "by column", "by row", "random", "one row"],
)
def test_the_norm_of_an_error_is_seen_whatever_its_shape(error: np.ndarray) -> None:
    found = norm_of(exact_sums(error, Cells((4, 64), (0, 0))), dims=2)
    assert found == pytest.approx(float(np.linalg.norm(error)), rel=0.15)


def test_an_error_along_a_diagonal_is_seen_larger_by_no_more_than_the_root_of_two() -> None:
    """Rows and columns have the same signs there, so that a few elements of a cell add up."""
    error = np.eye(64, 1024)
    found = norm_of(exact_sums(error, Cells((4, 64), (0, 0))), dims=2)
    assert 1.0 <= found / np.linalg.norm(error) <= 1.4143


@pytest.mark.parametrize(
    ("shape", "itemsize", "kept", "sizes"),
    [
        ((8192, 2048), 2, (), (4, 2048)),
        ((8, 1024, 2048), 2, (0,), (1, 4, 2048)),
        ((2048, 4, 16, 128), 2, (1,), (64, 1, 1, 128)),
        ((4, 1023, 50304), 4, (0,), (1, 32, 128)),  # 50,304 is 393 x 128
        ((4096,), 4, (), (16,)),  # no fewer sums than a norm needs
        ((), 4, (), ()),
    ],
)
def test_sizes_leave_a_small_share_and_enough_sums(
    shape: tuple[int, ...], itemsize: int, kept: tuple[int, ...], sizes: tuple[int, ...]
) -> None:
    assert choose_cells(shape, itemsize, kept_dims=kept).sizes == sizes


def test_a_shard_that_knows_its_place_begins_inside_of_a_cell() -> None:
    cells = choose_cells((64, 1376), 4, runs=[[(0, 64)], [(1376, 1376)]])
    assert cells.shifts[1] == 1376 % cells.sizes[1]


def test_no_cell_holds_parts_of_two_runs() -> None:
    zigzag = [[(8, 8), (48, 8)], [(0, 4096)]]
    cells = choose_cells((16, 4096), 4, runs=zigzag, fewest=64)
    assert cells.sizes[0] <= 8
    odd = [[(3, 5), (20, 7)], [(0, 4096)]]
    assert choose_cells((12, 4096), 4, runs=odd, fewest=64).sizes[0] == 1


def test_a_small_tensor_keeps_as_many_sums_as_a_large_one_at_least() -> None:
    for shape in ((64, 64), (8192,), (16, 16, 128)):
        cells = choose_cells(shape, 4)
        assert np.prod(cells.sums_shape(shape)) >= FEWEST
