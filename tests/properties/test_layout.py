"""Layouts against plain index arrays: whatever is split can be put back, and nothing is invented.

The oracle never looks at runs. Every split is made twice, on a layout and on one numpy array of
global indices a dim; the two must say the same. -1 is padding.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from ttrace.core.door import from_dict
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Run, normalise
from ttrace.core.logical import Piece, assemble, disjoint_covers, find_gaps
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import LayoutError
from ttrace.trace.blocks import BlockReader, Grid, blocks
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter

SUMMARY = Summary(steps=1, hooks_expected=0, hooks_fired=0)
DTYPES = (torch.float32, torch.bfloat16, torch.int64)


@dataclass(frozen=True)
class Part:
    """A layout and what it must mean."""

    layout: Layout
    indices: tuple[np.ndarray, ...]

    def replaced(self, dim: int, layout: Layout, indices: np.ndarray) -> Part:
        return Part(layout, (*self.indices[:dim], indices, *self.indices[dim + 1 :]))

    def cropped(self, shape: Sequence[int]) -> Part:
        layout = self.layout
        for dim, size in enumerate(shape):
            layout = layout.crop(dim, size)
        indices = (np.where(i < size, i, -1) for i, size in zip(self.indices, shape, strict=True))
        return Part(layout, tuple(indices))

    def holds(self) -> np.ndarray:
        """True for every logical element that the part holds."""
        mask = np.zeros(self.layout.shape, dtype=bool)
        mask[np.ix_(*(i[i >= 0] for i in self.indices))] = True
        return mask


def whole(shape: Sequence[int]) -> Part:
    return Part(Layout.full(shape), tuple(np.arange(size) for size in shape))


def chunks(part: Part, dim: int, count: int) -> Iterator[Part]:
    mine = part.indices[dim]
    parts = torch.from_numpy(mine).chunk(count) if mine.size else ()
    for i in range(count):
        held = parts[i].numpy() if i < len(parts) else mine[:0]
        yield part.replaced(dim, part.layout.shard(dim, i, count), held)


def zigzags(part: Part, dim: int, count: int) -> Iterator[Part]:
    grid = part.indices[dim].reshape(2 * count, -1)
    for i in range(count):
        held = np.concatenate([grid[i], grid[-1 - i]])
        yield part.replaced(dim, part.layout.zigzag(dim, i, count), held)


def sections(part: Part, dim: int, sizes: Sequence[int], count: int) -> Iterator[Part]:
    cut = np.split(part.indices[dim], np.cumsum(sizes)[:-1])
    for i in range(count):
        held = np.concatenate([section.reshape(count, -1)[i] for section in cut])
        yield part.replaced(dim, part.layout.interleaved(dim, sizes, i, count), held)


def samples(part: Part, dim: int, order: Sequence[int], count: int) -> Iterator[Part]:
    for local in np.array_split(np.array(order, dtype=int), count):
        layout = part.layout.take(dim, [Run(int(i), 1) for i in local])
        yield part.replaced(dim, layout, part.indices[dim][local])


@st.composite
def splits(draw: st.DrawFn, part: Part) -> list[Part]:
    """One split of one dim over a mesh axis, or over microbatches."""
    dim = draw(st.integers(0, len(part.indices) - 1))
    size, count = len(part.indices[dim]), draw(st.integers(1, 5))
    ways: list[Callable[[], Iterator[Part]]] = [lambda: chunks(part, dim, count)]
    if size % (2 * count) == 0:
        ways.append(lambda: zigzags(part, dim, count))
    if size % count == 0:
        cuts = sorted(draw(st.lists(st.integers(0, size // count), max_size=3)))
        sizes = [count * (b - a) for a, b in itertools.pairwise([0, *cuts, size // count])]
        ways.append(lambda: sections(part, dim, sizes, count))
    order = draw(st.permutations(range(size)))
    ways.append(lambda: samples(part, dim, order, count))
    return list(draw(st.sampled_from(ways))())


@st.composite
def shapes(draw: st.DrawFn, dims: int = 1) -> tuple[int, ...]:
    return tuple(draw(st.lists(st.integers(0, 8), min_size=dims, max_size=3)))


@st.composite
def partitions(draw: st.DrawFn, shape: tuple[int, ...] | None = None) -> list[Part]:
    """A logical tensor, perhaps padded, split up to three times over: at most 15 parts."""
    shape = draw(shapes()) if shape is None else shape
    padding = draw(st.sampled_from([0, 0, 1, 3]))
    parts = [whole([size + padding for size in shape])]
    for _ in range(draw(st.integers(0, 3))):
        if len(parts) > 3:
            break
        parts = [child for part in parts for child in draw(splits(part))]
    return [part.cropped(shape) for part in parts]


def expand(layout: Layout) -> list[list[int]]:
    def of(run: Run) -> list[int]:
        return [-1 if run.start is None else run.start + i for i in range(run.length)]

    return [[index for run in runs for index in of(run)] for runs in layout.runs]


def is_canonical(layout: Layout) -> bool:
    runs = [run for dim in layout.runs for run in dim]
    neighbours = [pair for dim in layout.runs for pair in itertools.pairwise(dim)]
    return all(run.length > 0 for run in runs) and not any(
        b.start == (None if a.start is None else a.start + a.length) for a, b in neighbours
    )


@given(partitions())
@settings(max_examples=150, deadline=None)
def test_every_split_holds_the_indices_of_the_oracle(parts: list[Part]) -> None:
    for part in parts:
        assert expand(part.layout) == [held.tolist() for held in part.indices]
        assert part.layout.local_shape == tuple(map(len, part.indices))
        assert part.layout.volume == part.holds().sum()
        assert is_canonical(part.layout)
        whole_shape = [list(range(size)) for size in part.layout.shape]
        assert part.layout.is_full == (expand(part.layout) == whole_shape)


@given(partitions(), st.lists(st.sampled_from(["tp", "cp", "ep"])))
@settings(max_examples=50, deadline=None)
def test_a_layout_survives_json(parts: list[Part], axes: list[str]) -> None:
    for part in parts:
        layout = part.layout.summed_over(*axes)
        assert from_dict(Layout, json.loads(json.dumps(layout.to_json()))) == layout
        assert layout.partial == tuple(sorted(set(axes)))


@given(st.data())
@settings(max_examples=100, deadline=None)
def test_then_is_one_take_after_the_other(data: st.DataObject) -> None:
    outer = data.draw(st.sampled_from(data.draw(partitions()))).layout.summed_over("tp")
    inner = data.draw(st.sampled_from(data.draw(partitions(outer.local_shape)))).layout
    taken = outer
    for dim, runs in enumerate(inner.runs):
        taken = taken.take(dim, runs)
    assert outer.then(inner) == taken
    for dim, (mine, inside) in enumerate(zip(expand(outer), expand(inner), strict=True)):
        assert expand(taken)[dim] == [-1 if i < 0 else mine[i] for i in inside]
    assert outer.then(inner.summed_over("cp")).partial == ("cp", "tp")
    assert outer.then(Layout.full(outer.local_shape)) == outer
    assert Layout.full(outer.shape).then(outer) == outer


@given(st.lists(st.tuples(st.none() | st.integers(0, 6), st.integers(0, 3)), max_size=6))
@settings(max_examples=100, deadline=None)
def test_layouts_that_hold_the_same_are_the_same_value(pairs: list[tuple[int | None, int]]) -> None:
    raw = tuple(Run(start, length) for start, length in pairs)
    layout = Layout(shape=(9,), runs=(raw,))
    ones = [Run(None if i < 0 else i, 1) for i in expand(layout)[0]]
    assert layout.runs == (normalise(ones),)
    assert layout == Layout(shape=(9,), runs=(tuple(ones),))
    assert is_canonical(layout)
    assert normalise(normalise(raw)) == normalise(raw)


def test_fsdp_after_tp_and_tp_after_fsdp_are_different_shards_of_one_dim() -> None:
    full = Layout.full((16, 4))
    strided = [full.shard(0, tp, 2).shard(0, dp, 4) for dp in range(4) for tp in range(2)]
    nested = [full.shard(0, dp, 4).shard(0, tp, 2) for dp in range(4) for tp in range(2)]
    assert [str(layout) for layout in strided[:3]] == ["[0:2, 0:4]", "[8:10, 0:4]", "[2:4, 0:4]"]
    assert [str(layout) for layout in nested[:3]] == ["[0:2, 0:4]", "[2:4, 0:4]", "[4:6, 0:4]"]
    assert disjoint_covers(strided) == disjoint_covers(nested) == [list(range(8))]
    assert set(strided) == set(nested)


def test_grouped_heads_of_a_fused_projection() -> None:
    # 4 query heads and 2 key-value heads of size 2, side by side: q 8 rows, k 4, v 4.
    first = Layout.full((16, 4)).interleaved(0, (8, 4, 4), 0, 2)
    assert str(first) == "[0:4|8:10|12:14, 0:4]"
    assert str(first.shard(1, 1, 2)) == "[0:4|8:10|12:14, 2:4]"


FULL = Layout.full((8, 4))
HALF = FULL.shard(0, 0, 2)


def interleaved(*sizes: int, i: int = 0) -> Layout:
    return FULL.interleaved(0, sizes, i, 2)


def of_size_8(*runs: tuple[Run, ...]) -> Layout:
    return Layout(shape=(8,), runs=runs)


NONSENSE: dict[str, tuple[Callable[[], object], Callable[[], object]]] = {
    "negative start": (lambda: Run(-1, 2), lambda: Run(0, 2)),
    "negative length": (lambda: Run(0, -1), lambda: Run(0, 0)),
    "negative size": (lambda: Layout.full((-1,)), lambda: Layout.full((0,))),
    "too many dims": (lambda: of_size_8((), ()), lambda: of_size_8(())),
    "leaves the tensor": (lambda: of_size_8((Run(7, 2),)), lambda: of_size_8((Run(7, 1),))),
    "leaves the shard": (lambda: HALF.take(0, [Run(3, 2)]), lambda: HALF.take(0, [Run(3, 1)])),
    "no such dim": (lambda: FULL.shard(2, 0, 2), lambda: FULL.shard(1, 0, 2)),
    "dim from the end": (lambda: FULL.take(-1, []), lambda: FULL.take(1, [])),
    "shard beyond the axis": (lambda: FULL.shard(0, 2, 2), lambda: FULL.shard(0, 1, 2)),
    "shard before the axis": (lambda: FULL.shard(0, -1, 2), lambda: FULL.shard(0, 0, 2)),
    "axis of size zero": (lambda: FULL.shard(0, 0, 0), lambda: FULL.shard(0, 0, 1)),
    "zigzag does not divide": (lambda: FULL.zigzag(0, 0, 3), lambda: FULL.zigzag(0, 0, 2)),
    "zigzag beyond the axis": (lambda: FULL.zigzag(0, 2, 2), lambda: FULL.zigzag(0, 1, 2)),
    "sections do not sum": (lambda: interleaved(4, 2), lambda: interleaved(4, 4)),
    "sections do not divide": (lambda: interleaved(5, 3), lambda: interleaved(6, 2)),
    "sections beyond the axis": (lambda: interleaved(4, 4, i=2), lambda: interleaved(4, 4, i=1)),
    "crop makes it larger": (lambda: FULL.crop(0, 9), lambda: FULL.crop(0, 8)),
    "then of another shape": (lambda: HALF.then(FULL), lambda: FULL.then(HALF)),
}


@pytest.mark.parametrize("name", NONSENSE)
def test_nonsense_is_refused_and_its_sane_twin_is_not(name: str) -> None:
    NONSENSE[name][1]()
    with pytest.raises(LayoutError):
        NONSENSE[name][0]()


def put_back(
    pieces: Sequence[tuple[Layout, list[torch.Tensor]]], shape: tuple[int, ...], budget: int
) -> torch.Tensor:
    """The logical tensor, read in blocks of `budget` elements from a trace with these tensors."""
    with tempfile.TemporaryDirectory() as folder:
        writer = TraceWriter(Path(folder), RankInfo(rank=0, world_size=1))
        written: list[Piece] = []
        for layout, terms in pieces:
            about: dict[str, Any] = {
                "dtype": dtype_name(terms[0].dtype),
                "shape": tuple(terms[0].shape),
            }
            id_ = TensorId(step=0, module=f"m{len(written)}", kind=Kind.OUTPUT)
            record = Record(id=id_, rank=0, sequence=0, layout=layout, **about)
            records = tuple(writer.write(record, term) for term in terms)
            written.append(Piece(layout=layout, records=records))
        writer.close(SUMMARY)
        tensor = assemble(shape, written)
        assert (tensor.gaps, tensor.replicas) == ((), ())
        with SpanReader(Path(folder)) as spans:
            reader, result = BlockReader(spans), torch.full(shape, -7.0, dtype=torch.float64)
            for start, stop in blocks(shape, budget):
                place = tuple(slice(a, b) for a, b in zip(start, stop, strict=True))
                assert result[place].eq(-7).all(), "two blocks overlap"
                result[place] = reader.read(tensor.pieces, shape, start, stop).double()
            reader.finish(tensor)
        return result


def cut(logical: torch.Tensor, part: Part) -> torch.Tensor:
    """The part of the logical tensor by fancy indexing, with rubbish where it is padded."""
    padded = torch.nn.functional.pad(logical.double(), [0, 1] * logical.dim(), value=99)
    return padded[np.ix_(*part.indices)].to(logical.dtype)


@given(st.data())
@settings(max_examples=120, deadline=None)
def test_what_was_split_is_put_back(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    logical = torch.arange(math.prod(shape)).reshape(shape) % 251
    pieces = []
    for part in data.draw(partitions(shape)):
        local = cut(logical.to(data.draw(st.sampled_from(DTYPES))), part)
        others = list(range(1, data.draw(st.integers(1, 3))))
        terms = [local - sum(others), *(torch.full_like(local, other) for other in others)]
        pieces.append((part.layout.summed_over(*(["tp"] if others else [])), terms))
    result = put_back(pieces, shape, data.draw(st.sampled_from([1, 3, 8, 1 << 20])))
    assert result.tolist() == logical.tolist()


def test_swapped_shards_are_not_put_back() -> None:
    logical = torch.arange(32.0).reshape(8, 4)
    parts = list(zigzags(whole((8, 4)), 0, 2))
    local = [cut(logical, part) for part in parts]
    right = [(part.layout, [tensor]) for part, tensor in zip(parts, local, strict=True)]
    swapped = [(part.layout, [tensor]) for part, tensor in zip(parts, local[::-1], strict=True)]
    assert put_back(right, (8, 4), 8).equal(logical.double())
    assert not put_back(swapped, (8, 4), 8).equal(logical.double())


def test_a_scalar_is_put_back() -> None:
    assert put_back([(Layout.full(()), [torch.tensor(3.0)])], (), 8).item() == 3


@given(st.data())
@settings(max_examples=150, deadline=None)
def test_gaps_and_covers_agree_with_counting(data: st.DataObject) -> None:
    shape = data.draw(shapes())
    everything = [part for _ in range(2) for part in data.draw(partitions(shape))]
    chosen = data.draw(st.lists(st.sampled_from(everything), max_size=12))
    held = np.zeros(shape, dtype=int)
    greedy: list[tuple[np.ndarray, list[int]]] = []
    for index, part in enumerate(chosen):
        held += part.holds()
        room = (cover for cover in greedy if not (cover[0] & part.holds()).any())
        mask, members = next(room, (np.zeros(shape, dtype=bool), []))
        mask |= part.holds()
        members.append(index)
        if len(members) == 1:
            greedy.append((mask, members))
    layouts = [part.layout for part in chosen]
    assert disjoint_covers(layouts) == [members for _, members in greedy]
    missing = np.zeros(shape, dtype=int)
    for box in find_gaps(shape, layouts):
        place = tuple(slice(a, b) for a, b in zip(box.start, box.stop, strict=True))
        assert box.volume == missing[place].size > 0
        missing[place] += 1
    assert missing.tolist() == (held == 0).astype(int).tolist()


@given(st.data())
@settings(max_examples=80, deadline=None)
def test_a_partition_has_no_gap_until_a_part_is_dropped(data: st.DataObject) -> None:
    parts = data.draw(partitions())
    shape, layouts = parts[0].layout.shape, [part.layout for part in parts]
    assert find_gaps(shape, layouts) == []
    assert disjoint_covers(layouts) == [list(range(len(parts)))]
    dropped = layouts.pop(data.draw(st.integers(0, len(parts) - 1)))
    assert sum(box.volume for box in find_gaps(shape, layouts)) == dropped.volume


@given(shape=shapes(), budget=st.sampled_from([1, 3, 8, 1 << 20]))
@settings(max_examples=80, deadline=None)
def test_every_element_is_in_the_box_of_its_number(shape: tuple[int, ...], budget: int) -> None:
    grid = Grid(shape, budget)
    numbers = np.full(shape, -1)
    for number in range(len(grid)):
        numbers[tuple(map(slice, *grid.box(number)))] = number
    for index in np.ndindex(*shape):
        assert grid.number_at(index) == numbers[index]
