"""Which boxes are looked at: all of a small tensor; cells, parts and the worst of a large one."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import pytest

from ttrace.analysis.diagnose.sample import EXAMINED, Sample, SampledBox, as_matrix, sample
from ttrace.core.evidence import CELLS
from ttrace.core.layout import Layout
from ttrace.core.statistics import Slice, Statistics

LARGE = [
    (8192, 1024),
    (100, 50257),
    (4096, 65536),
    (3, 5, 7, 1 << 15),
    (2, 1 << 24),
    (1 << 24,),
    (1 << 20, 3),
    (1 << 10, 3, 16385),
    (1 << 24, 1),
]


def volume(boxes: Sequence[SampledBox]) -> int:
    return sum(math.prod(b - a for a, b in zip(*box, strict=True)) for box in boxes)


def cells_of(box: SampledBox, shape: Sequence[int], cells: tuple[int, int]) -> set[tuple[int, int]]:
    rows, columns = as_matrix(shape)
    start, stop = box
    first = int(np.ravel_multi_index(start[:-1], shape[:-1])) if shape[:-1] else 0
    last = int(np.ravel_multi_index([i - 1 for i in stop[:-1]], shape[:-1])) if shape[:-1] else 0
    return {
        (row * cells[0] // rows, column * cells[1] // columns)
        for row in range(first, last + 1)
        for column in {start[-1], stop[-1] - 1, *range(start[-1], stop[-1], columns // cells[1])}
    }


def measured(worst: tuple[int, ...], row: Slice | None = None) -> Statistics:
    return Statistics(
        count=1,
        error_norm=1.0,
        reference_norm=1.0,
        candidate_norm=1.0,
        dot=1.0,
        max_error=1.0,
        error_sum=0.0,
        nonfinite_reference=0,
        nonfinite_candidate=0,
        unequal=1,
        worst_element=worst,
        slices=() if row is None else (row,),
    )


def holds(chosen: Sequence[SampledBox], index: Sequence[int]) -> bool:
    return any(
        all(a <= i < b for a, i, b in zip(start, index, stop, strict=True))
        for start, stop in chosen
    )


@pytest.mark.parametrize("shape", [(), (1,), (0, 4), (7,), (64, 64), (3, 5, 7), (1 << 20,)])
def test_small_tensor_is_seen_whole(shape: tuple[int, ...]) -> None:
    found = sample(shape, [], None)
    assert not found.is_part
    assert volume(found.typical) == math.prod(shape)
    assert found.worst == ()


@pytest.mark.parametrize("shape", LARGE)
def test_large_tensor_is_seen_in_every_cell_at_bounded_cost(shape: tuple[int, ...]) -> None:
    found = sample(shape, [], None)
    assert found.is_part
    assert EXAMINED // 4 <= volume(found.typical) <= EXAMINED
    assert len(found.typical) <= CELLS // 2
    seen = {cell for box in found.typical for cell in cells_of(box, shape, found.cells)}
    assert len(seen) == found.cells[0] * found.cells[1]


def test_worst_element_and_row_are_seen_and_kept_apart() -> None:
    shape = (8192, 1024)
    row = Slice(dims=(0,), index=(77,), error_norm=1.0)
    found = sample(shape, [], measured((5000, 3), row))
    assert holds(found.worst, (5000, 3))
    assert holds(found.worst, (77, 0))
    assert holds(found.worst, (77, 1023))
    assert not set(found.worst) & set(found.typical)
    assert len(found.worst) == 2


@pytest.mark.parametrize("dim", [0, 1])
@pytest.mark.parametrize("count", [2, 256])
def test_every_part_is_seen(dim: int, count: int) -> None:
    full = Layout.full((8192, 1024))
    parts = [full.shard(dim, index, count) for index in range(count)]
    found = sample(full.shape, parts, None)
    for part in parts:
        assert any(all(part.meets(*box)) for box in found.typical)
    assert volume(found.typical) <= 2 * EXAMINED


def test_without_the_parts_some_would_be_missed() -> None:
    """The companion of the test above."""
    full = Layout.full((8192, 1024))
    found: Sample = sample(full.shape, [], None)
    parts = [full.shard(0, index, 256) for index in range(256)]
    missed = [p for p in parts if not any(all(p.meets(*box)) for box in found.typical)]
    assert len(missed) > 100


def test_places_differ_from_cell_to_cell() -> None:
    """A fixed distance could meet the same row of every expert, or the same head."""
    shape = (64 * 1024, 1024)
    starts = [box[0][0] % 1024 for box in sample(shape, [], None).typical]
    assert len(set(starts)) > 8


def test_the_same_tensor_has_the_same_sample() -> None:
    assert sample((8192, 1024), [], None) == sample((8192, 1024), [], None)
