"""Pairs box by box: the same as the tensors they were cut from, in any boxes and any layout."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tests.support.logical import write_logical
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor
from ttrace.errors import CorruptTrace
from ttrace.trace.blocks import Grid, PairReader
from ttrace.trace.spans import SpanReader

SHAPE = (6, 4, 10)
EXPECTED = torch.arange(240.0).reshape(SHAPE)
FOUND = EXPECTED + 0.5
FULL = Layout.full(SHAPE)


@pytest.fixture
def reference(tmp_path: Path) -> LogicalTensor:
    return write_logical(tmp_path / "reference", {0: (FULL, EXPECTED)})


@pytest.fixture
def candidate(tmp_path: Path) -> LogicalTensor:
    """Two column shards on ranks 0 and 1; rank 2 repeats what rank 1 holds, but for one element."""
    left, right = (part.contiguous() for part in FOUND.chunk(2, 2))
    repeated = right.clone()
    repeated[5, 3, 4] = -1
    halves = [FULL.shard(2, 0, 2), FULL.shard(2, 1, 2)]
    parts = {0: (halves[0], left), 1: (halves[1], right), 2: (halves[1], repeated)}
    return write_logical(tmp_path / "candidate", parts)


@pytest.fixture
def pairs(
    tmp_path: Path, reference: LogicalTensor, candidate: LogicalTensor
) -> Iterator[PairReader]:
    with SpanReader(tmp_path / "reference") as left, SpanReader(tmp_path / "candidate") as right:
        yield PairReader(left, right)


@pytest.mark.parametrize("budget", [1, 7, 20, 40, 1 << 20])
def test_walk_gives_both_tensors(
    pairs: PairReader, reference: LogicalTensor, candidate: LogicalTensor, budget: int
) -> None:
    grid = Grid(SHAPE, budget)
    left, right = torch.full(SHAPE, -7.0), torch.full(SHAPE, -7.0)
    for block in pairs.walk(reference, candidate, map(grid.box, range(len(grid)))):
        window = tuple(map(slice, block.start, block.stop))
        left[window], right[window] = block.expected, block.found
    assert torch.equal(left, EXPECTED)
    assert torch.equal(right, FOUND)
    pairs.finish(reference, candidate)


def test_walk_reads_the_boxes_that_are_asked_for(
    pairs: PairReader, reference: LogicalTensor, candidate: LogicalTensor
) -> None:
    grid = Grid(SHAPE, 20)
    (block,) = pairs.walk(reference, candidate, [grid.box(grid.number_at((3, 2, 9)))])
    assert (block.start, block.stop) == ((3, 2, 0), (4, 4, 10))
    assert torch.equal(block.found, FOUND[3:4, 2:4])


def test_a_replica_is_read_by_itself(
    pairs: PairReader, reference: LogicalTensor, candidate: LogicalTensor
) -> None:
    (replica,) = candidate.replicas
    for block in pairs.walk(reference, candidate):
        ((window, values),) = pairs.held(replica, candidate, block)
        assert int((block.found[window] != values).sum()) == 1


def test_a_piece_comes_with_its_part_of_the_reference(
    pairs: PairReader, reference: LogicalTensor, candidate: LogicalTensor
) -> None:
    ((expected, values),) = pairs.against(reference, candidate.pieces[1])
    assert torch.equal(expected, EXPECTED[:, :, 5:])
    assert torch.equal(values, FOUND[:, :, 5:])


def test_changed_bytes_are_found_at_the_end(
    tmp_path: Path, pairs: PairReader, reference: LogicalTensor, candidate: LogicalTensor
) -> None:
    (segment,) = (tmp_path / "candidate" / "rank-00001").glob("*.safetensors")
    data = bytearray(segment.read_bytes())
    data[-1] ^= 1
    segment.write_bytes(data)
    list(pairs.walk(reference, candidate))
    with pytest.raises(CorruptTrace, match="rank 1"):
        pairs.finish(reference, candidate)
