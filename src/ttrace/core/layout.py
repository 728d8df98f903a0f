"""Layouts: where a local tensor sits in the logical one.

For every dim a layout lists the runs of global indices that the local tensor holds, in local order:

    [0:4, 16:32]            a plain shard of dim 1
    [0:4, 0:8|24:32]        a zigzag shard of dim 1 (rank 0 of 2)
    [0:4, 96:100|pad 4]     the last shard of a vocabulary padded to a multiple
    [0:4, 0:32] partial(tp) the whole, still to be summed over the mesh axis tp

`axis` is a mesh axis, `dim` a tensor dim. Replication needs no word: two ranks that hold the same
indices are replicas. Splitting is composition: every method takes the layout of a local tensor and
gives the layout of a part of it, so FSDP of TP of a microbatch is three calls.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, ClassVar

from ttrace.core.limits import DIMS, RUNS, AtMost, Label, Size, Sizes
from ttrace.core.quick import HashedOnce
from ttrace.errors import LayoutError


@dataclass(frozen=True, slots=True)
class Run:
    """`length` neighbouring global indices from `start`, or padding when `start` is None."""

    is_listed: ClassVar = True

    start: Size | None
    length: Size

    def __post_init__(self) -> None:
        if self.length < 0 or (self.start is not None and self.start < 0):
            raise LayoutError(f"a run needs start >= 0 and length >= 0, found {self!r}")

    @property
    def indices(self) -> range:
        """The global indices; padding counts from 0."""
        start = self.start or 0
        return range(start, start + self.length)

    def __str__(self) -> str:
        if self.start is None:
            return f"pad {self.length}"
        return f"{self.start}:{self.start + self.length}"


Runs = Annotated[tuple[Run, ...], AtMost(RUNS)]
Slices = tuple[slice, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout(HashedOnce):
    """The runs of every dim of a logical tensor of this `shape`, and axes still to be summed."""

    shape: Sizes
    runs: Annotated[tuple[Runs, ...], AtMost(DIMS)]
    partial: Annotated[tuple[Label, ...], AtMost(DIMS)] = ()

    __hash__ = HashedOnce.__hash__

    def __post_init__(self) -> None:
        if len(self.runs) != len(self.shape):
            raise LayoutError(
                f"a tensor of shape {self.shape} needs runs for {len(self.shape)} dims, "
                f"found {len(self.runs)}"
            )
        for dim, (size, runs) in enumerate(zip(self.shape, self.runs, strict=True)):
            for run in runs:
                if run.start is not None and run.start + run.length > size:
                    raise LayoutError(f"run {run} of dim {dim} leaves the logical size {size}")
        object.__setattr__(self, "runs", tuple(normalise(runs) for runs in self.runs))
        object.__setattr__(self, "partial", tuple(sorted(set(self.partial))))

    @classmethod
    def full(cls, shape: Sequence[int]) -> Layout:
        """The whole logical tensor."""
        return _full(tuple(shape))

    @property
    def local_shape(self) -> tuple[int, ...]:
        return tuple(sum(run.length for run in runs) for runs in self.runs)

    @property
    def volume(self) -> int:
        """How many logical elements are held; padding does not count."""
        return math.prod(
            sum(run.length for run in runs if run.start is not None) for runs in self.runs
        )

    @property
    def is_full(self) -> bool:
        return self.runs == Layout.full(self.shape).runs

    def __str__(self) -> str:
        dims = ", ".join("|".join(map(str, runs)) or "nothing" for runs in self.runs)
        partial = f" partial({', '.join(self.partial)})" if self.partial else ""
        return f"[{dims}]{partial}"

    def take(self, dim: int, local_runs: Iterable[Run]) -> Layout:
        """The layout of a tensor gathered from `local_runs` of this one's local indices."""
        self._require_dim(dim)
        taken = tuple(piece for run in local_runs for piece in _cut(self.runs[dim], run))
        return replace(self, runs=(*self.runs[:dim], taken, *self.runs[dim + 1 :]))

    def shard(self, dim: int, index: int, count: int) -> Layout:
        """Chunk `index` of `count`, uneven as torch.chunk: the last ones are shorter or empty."""
        size = self._size_to_split(dim, index, count)
        chunk = -(-size // count)
        start = min(index * chunk, size)
        return self.take(dim, [Run(start, min(start + chunk, size) - start)])

    def zigzag(self, dim: int, index: int, count: int) -> Layout:
        """Chunks `index` and `2 * count - 1 - index` of `2 * count` (context parallel)."""
        size = self._size_to_split(dim, index, count)
        if size % (2 * count):
            raise LayoutError(
                f"zigzag over {count} needs a size divisible by {2 * count}, found {size}"
            )
        chunk = size // (2 * count)
        return self.take(dim, [Run(i * chunk, chunk) for i in (index, 2 * count - 1 - index)])

    def interleaved(self, dim: int, sections: Sequence[int], index: int, count: int) -> Layout:
        """Chunk `index` of every section, side by side: fused QKV, gate and up of a gated MLP."""
        size = self._size_to_split(dim, index, count)
        if sum(sections) != size or any(section % count for section in sections):
            raise LayoutError(
                f"sections {tuple(sections)} must sum to {size} and each divide by {count}"
            )
        starts = itertools.accumulate(sections, initial=0)
        chunks = [section // count for section in sections]
        return self.take(
            dim,
            [
                Run(start + index * chunk, chunk)
                for start, chunk in zip(starts, chunks, strict=False)
            ],
        )

    def crop(self, dim: int, size: int) -> Layout:
        """The logical dim ends at `size`; indices beyond it were padding all along."""
        self._require_dim(dim)
        if not 0 <= size <= self.shape[dim]:
            raise LayoutError(f"cannot crop dim {dim} of size {self.shape[dim]} to {size}")
        cropped: list[Run] = []
        for run in self.runs[dim]:
            kept = 0 if run.start is None else max(0, min(run.start + run.length, size) - run.start)
            cropped += [Run(run.start, kept), Run(None, run.length - kept)]
        shape = (*self.shape[:dim], size, *self.shape[dim + 1 :])
        runs = (*self.runs[:dim], normalise(cropped), *self.runs[dim + 1 :])
        return replace(self, shape=shape, runs=runs)

    def summed_over(self, *axes: str) -> Layout:
        """The same indices, but the value is one term of a sum over these mesh axes."""
        return replace(self, partial=(*self.partial, *axes))

    def then(self, inner: Layout) -> Layout:
        """`inner` splits the local tensor of this layout further."""
        return _then(self, inner)

    def meets(self, start: Sequence[int], stop: Sequence[int]) -> list[list[tuple[slice, slice]]]:
        """Where this shard meets the logical box start:stop: per dim, (local, inside the box)."""
        return [
            list(_meet(runs, low, high))
            for runs, low, high in zip(self.runs, start, stop, strict=True)
        ]

    def pieces(self, start: Sequence[int], stop: Sequence[int]) -> Iterator[tuple[Slices, Slices]]:
        """The same as boxes: (local slices, slices inside the box)."""
        for combination in itertools.product(*self.meets(start, stop)):
            yield (
                tuple(local for local, _ in combination),
                tuple(inside for _, inside in combination),
            )

    def overlaps(self, other: Layout) -> bool:
        """Whether the two hold an element in common."""
        if self.runs == other.runs:
            return self.volume > 0
        return all(_share(mine, theirs) for mine, theirs in zip(self.runs, other.runs, strict=True))

    def _size_to_split(self, dim: int, index: int, count: int) -> int:
        self._require_dim(dim)
        if not 0 <= index < count:
            raise LayoutError(f"there is no part {index} of {count}")
        return self.local_shape[dim]

    def _require_dim(self, dim: int) -> None:
        if not 0 <= dim < len(self.shape):
            raise LayoutError(f"a tensor of shape {self.shape} has no dim {dim}: dims count from 0")

    def to_json(self) -> dict[str, Any]:
        return {
            "shape": list(self.shape),
            "runs": [[[run.start, run.length] for run in runs] for runs in self.runs],
            "partial": list(self.partial),
        }


@functools.lru_cache(maxsize=1 << 12)  # chosen: every shape of a model; the same few come again
def _full(shape: tuple[int, ...]) -> Layout:
    return Layout(shape=shape, runs=tuple((Run(0, size),) for size in shape))


@functools.lru_cache(maxsize=1 << 14)  # chosen: every shard of every shape of a model
def _then(outer: Layout, inner: Layout) -> Layout:
    if inner.shape != outer.local_shape:
        raise LayoutError(f"cannot split a local tensor of {outer.local_shape} as {inner.shape}")
    result = outer
    for dim, runs in enumerate(inner.runs):
        result = result.take(dim, runs)
    return result.summed_over(*inner.partial)


def normalise(runs: Iterable[Run]) -> Runs:
    """Merge neighbours and drop empty runs, so that equal layouts are equal values."""
    merged: list[Run] = []
    for run in runs:
        if run.length == 0:
            continue
        last = merged[-1] if merged else None
        if last is not None and _continues(last, run):
            merged[-1] = Run(last.start, last.length + run.length)
        else:
            merged.append(run)
    return tuple(merged)


def _continues(last: Run, run: Run) -> bool:
    if last.start is None or run.start is None:
        return last.start is run.start
    return last.start + last.length == run.start


def _cut(runs: Runs, wanted: Run) -> Iterator[Run]:
    """The global runs behind the local indices of `wanted`."""
    if wanted.start is None:
        yield wanted
        return
    position, stop = 0, wanted.start + wanted.length
    for run in runs:
        low, high = max(wanted.start, position), min(stop, position + run.length)
        if low < high:
            start = None if run.start is None else run.start + low - position
            yield Run(start, high - low)
        position += run.length
    if stop > position:
        raise LayoutError(f"local run {wanted} leaves the local size {position}")


def _meet(runs: Runs, low: int, high: int) -> Iterator[tuple[slice, slice]]:
    position = 0
    for run in runs:
        if run.start is not None:
            first, last = max(low, run.start), min(high, run.start + run.length)
            if first < last:
                offset = position - run.start
                yield slice(first + offset, last + offset), slice(first - low, last - low)
        position += run.length


def _share(mine: Runs, theirs: Runs) -> bool:
    mine_sorted = sorted((run.start, run.length) for run in mine if run.start is not None)
    theirs_sorted = sorted((run.start, run.length) for run in theirs if run.start is not None)
    i = j = 0
    while i < len(mine_sorted) and j < len(theirs_sorted):
        (a, a_length), (b, b_length) = mine_sorted[i], theirs_sorted[j]
        if a < b + b_length and b < a + a_length:
            return True
        if a + a_length <= b + b_length:
            i += 1
        else:
            j += 1
    return False
