"""Numbers made from a name and a logical position, and from nothing else.

    element i of a tensor = mean + std * sqrt(3) * u,   u = hash(seed, name, i), uniform in [-1, 1)

Enters: a layout, a name and a seed. Leaves: the values of that shard, on its own device, without
the rest of the tensor and without a generator's state. All layouts, devices and dtypes agree bit
for bit: the hash is integer arithmetic modulo 2^32, its upper 24 bits are exact in float32, and
what follows is one multiplication and one addition, each rounded by itself. There is no log or
cosine, whose last bits differ between devices; that is why the values are uniform and not normal.

Shards are walked in chunks that stay in a cache. Rows of one dim are cut; the dims behind it are
whole in every chunk, those in front of it are looped over.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
import xxhash

from ttrace.core.layout import Layout, Run, Runs
from ttrace.errors import LayoutError, UsageError

# Elements hashed at a time. CPU: two int32 buffers of 256 KiB stay in a 1 MiB L2 cache (measured:
# 32 Ki and 128 Ki are 10% slower). Elsewhere: enough to hide the launch of a kernel, and small
# beside any model.
_CHUNK_ON_CPU = 64 * 1024
_CHUNK_ELSEWHERE = 4 * 1024 * 1024

# triple32 of Wellons' hash prospector, less its last shift: with two rounds (lowbias32) some names
# had neighbours with a correlation of 17 standard errors, with these three none (measured over 40
# names of 2^20 values, lags 1 to 100,000); nor did the last shift change anything.
_ROUNDS = ((17, 0xED5AD4BB), (11, 0xAC4C1B51), (15, 0x31848BAB))

# An index has 64 bits and the hash takes 32: the upper half chooses the key.
_BLOCK_BITS = 32
_MASK = 2**32 - 1

# The upper 24 bits of the hash, as a signed number: what float32 holds exactly.
_DRAW_BITS = 24
_HALF = 2 ** (_DRAW_BITS - 1)


def fill(
    local: torch.Tensor, layout: Layout, *, name: str, seed: int, mean: float, std: float
) -> None:
    """Overwrite a shard with its values; padding becomes zero."""
    if tuple(local.shape) != layout.local_shape:
        raise LayoutError(
            f"{name}: a shard of shape {tuple(local.shape)} cannot hold {layout}, which has shape "
            f"{layout.local_shape}"
        )
    target = (
        local
        if local.is_contiguous()
        else torch.empty(local.shape, dtype=local.dtype, device=local.device)
    )
    flat = target.view(-1)
    # Float32 from here on, so that no device rounds the factor in its own way.
    step = torch.tensor(std * math.sqrt(3) / _HALF, dtype=torch.float32).item()
    for place, drawn in draws(layout, name=name, seed=seed, device=local.device):
        part = flat[place]
        wide = part if part.dtype == torch.float32 else torch.empty_like(drawn, dtype=torch.float32)
        wide.copy_(drawn).mul_(step)
        if mean:
            wide.add_(mean)
        if wide is not part:
            part.copy_(wide)
    _clear_padding(target, layout)
    if target is not local:
        local.copy_(target)


def keep_mask(
    layout: Layout, *, name: str, seed: int, p: float, device: torch.device
) -> torch.Tensor:
    """True with probability 1 - p; padding is False."""
    if not 0 <= p <= 1:
        raise UsageError(f"{name}: the probability to drop an element is {p}, not within 0 to 1")
    mask = torch.empty(layout.local_shape, dtype=torch.bool, device=device)
    flat = mask.view(-1)
    first_kept = round(p * 2 * _HALF) - _HALF
    for place, drawn in draws(layout, name=name, seed=seed, device=device):
        torch.ge(drawn, first_kept, out=flat[place])
    _clear_padding(mask, layout)
    return mask


def draws(
    layout: Layout, *, name: str, seed: int, device: torch.device
) -> Iterator[tuple[slice, torch.Tensor]]:
    """Places in the flat local tensor and their numbers in [-2^23, 2^23), valid until the next."""
    if 0 in layout.local_shape:
        return
    walk = walk_of(layout, _CHUNK_ON_CPU if device.type == "cpu" else _CHUNK_ELSEWHERE)
    first_step = functools.cache(
        lambda block: _FirstStep.make(walk, _key(name, seed, block), device)
    )
    numbers, spare = (torch.empty(walk.most, dtype=torch.int32, device=device) for _ in range(2))
    for chunk in walk.chunks():
        size = walk.size(chunk)
        out = numbers[:size]
        blocks = walk.blocks(chunk)
        _hash(first_step(blocks[0]), walk, chunk, out, spare[:size])
        for block in blocks[1:]:
            other = torch.empty_like(out)
            _hash(first_step(block), walk, chunk, other, spare[:size])
            reached = walk.indices(chunk, device) >= block << _BLOCK_BITS
            out.copy_(torch.where(reached, other, out))
        yield slice(chunk.position, chunk.position + size), out


class Chunk(NamedTuple):
    """Neighbours in the flat local tensor, from `position` on."""

    position: int
    base: int  # what the dims in front of the cut one add to the logical index
    rows: Runs  # of the cut dim


class WalkAxis(NamedTuple):
    """The runs of one dim and how far its neighbours lie apart in the flat logical tensor."""

    runs: Runs
    stride: int

    @property
    def size(self) -> int:
        return sum(run.length for run in self.runs)

    def bounds(self) -> tuple[int, int]:
        """The least and the greatest it adds to the logical index; padding counts as 0."""
        first = min(run.start or 0 for run in self.runs)
        last = max(0 if run.start is None else run.start + run.length - 1 for run in self.runs)
        return first * self.stride, last * self.stride

    def offsets(self, device: torch.device | None = None) -> torch.Tensor:
        parts = [
            torch.arange(run.length, device=device) + run.start
            if run.start is not None
            else torch.zeros(run.length, dtype=torch.int64, device=device)
            for run in self.runs
        ]
        return torch.cat(parts) * self.stride


@dataclass(frozen=True, slots=True, kw_only=True)
class Walk:
    """How a shard is walked: loops over `outer`, slices of `cut`, `inner` whole."""

    outer: tuple[WalkAxis, ...]
    cut: WalkAxis
    inner: tuple[WalkAxis, ...]
    height: int  # rows of a chunk

    @property
    def width(self) -> int:
        return math.prod(axis.size for axis in self.inner)

    @property
    def most(self) -> int:
        """Elements of the largest chunk."""
        return min(self.height, self.cut.size) * self.width

    def size(self, chunk: Chunk) -> int:
        return WalkAxis(chunk.rows, self.cut.stride).size * self.width

    def chunks(self) -> Iterator[Chunk]:
        starts = range(0, self.cut.size, self.height)
        slices = [_part(self.cut.runs, start, self.height) for start in starts]
        position = 0
        for combination in itertools.product(*(axis.offsets().tolist() for axis in self.outer)):
            for rows in slices:
                chunk = Chunk(position, sum(combination), rows)
                yield chunk
                position += self.size(chunk)

    def blocks(self, chunk: Chunk) -> range:
        """The upper halves of its logical indices; nearly always one."""
        bounds = [axis.bounds() for axis in (WalkAxis(chunk.rows, self.cut.stride), *self.inner)]
        first = chunk.base + sum(low for low, _ in bounds)
        last = chunk.base + sum(high for _, high in bounds)
        return range(first >> _BLOCK_BITS, (last >> _BLOCK_BITS) + 1)

    def inner_offsets(self, device: torch.device) -> torch.Tensor:
        total = torch.zeros(1, dtype=torch.int64, device=device)
        for axis in self.inner:
            total = (total[:, None] + axis.offsets(device)).flatten()
        return total

    def indices(self, chunk: Chunk, device: torch.device) -> torch.Tensor:
        """The logical index of every element."""
        rows = WalkAxis(chunk.rows, self.cut.stride).offsets(device) + chunk.base
        return (rows[:, None] + self.inner_offsets(device)).flatten()


def walk_of(layout: Layout, limit: int) -> Walk:
    """Chunks of at most `limit` elements."""
    # A leading dim of size 1 leaves something to cut where all others fit into one chunk.
    strides = itertools.accumulate(reversed(layout.shape), lambda a, b: a * b, initial=1)
    runs: Sequence[Runs] = ((Run(0, 1),), *layout.runs)
    axes = tuple(map(WalkAxis, runs, reversed(tuple(strides))))
    cut, width = len(axes) - 1, 1
    while cut > 0 and width * axes[cut].size <= limit:
        width *= axes[cut].size
        cut -= 1
    height = max(1, limit // max(1, width))
    return Walk(outer=axes[:cut], cut=axes[cut], inner=axes[cut + 1 :], height=height)


class _FirstStep(NamedTuple):
    """The first step of the hash, index * factor + offset, as a sum of a row's and a column's."""

    factor: int
    offset: int
    ramp: torch.Tensor  # rows 0, 1, 2, ... of the cut dim
    inner: torch.Tensor

    @classmethod
    def make(cls, walk: Walk, key: tuple[int, int], device: torch.device) -> _FirstStep:
        factor, offset = key
        rows = torch.arange(min(walk.height, walk.cut.size), device=device)
        ramp = rows * (walk.cut.stride * factor & _MASK)
        # The product may leave 64 bits; its lower 32 do not care.
        inner = (walk.inner_offsets(device) & _MASK) * factor
        return cls(factor, offset, ramp.to(torch.int32), inner.to(torch.int32))

    def write(self, walk: Walk, chunk: Chunk, out: torch.Tensor) -> None:
        """A run is the ramp plus one number."""
        firsts = (chunk.base + (run.start or 0) * walk.cut.stride for run in chunk.rows)
        parts = [
            self.ramp[: run.length] + _signed(first * self.factor + self.offset)
            for run, first in zip(chunk.rows, firsts, strict=True)
        ]
        rows = parts[0] if len(parts) == 1 else torch.cat(parts)
        torch.add(rows[:, None], self.inner, out=out.view(-1, self.inner.numel()))


def _hash(
    first_step: _FirstStep, walk: Walk, chunk: Chunk, out: torch.Tensor, spare: torch.Tensor
) -> None:
    """In int32, where products wrap on every device; the mask makes its shift a logical one."""
    first_step.write(walk, chunk, out)
    for bits, factor in _ROUNDS:
        torch.bitwise_right_shift(out, bits, out=spare)
        spare.bitwise_and_(_MASK >> bits)
        out.bitwise_xor_(spare).mul_(_signed(factor))
    out.bitwise_right_shift_(32 - _DRAW_BITS)


def _key(name: str, seed: int, block: int) -> tuple[int, int]:
    """An odd factor permutes the indices, so that no two names share a stretch of numbers."""
    digest = xxhash.xxh3_64_intdigest(f"{seed}/{block}/{name}".encode())
    return digest >> 32 | 1, digest & _MASK


def _signed(number: int) -> int:
    """The lower 32 bits as int32 has them."""
    number &= _MASK
    return number - 2**32 if number >> 31 else number


def _part(runs: Runs, low: int, length: int) -> Runs:
    """Local indices low:low + length of the runs, or as many as there are."""
    size = sum(run.length for run in runs)
    most = max((run.start or 0) + run.length for run in runs)
    whole = Layout(shape=(most,), runs=(runs,))
    return whole.take(0, [Run(low, min(length, size - low))]).runs[0]


def _clear_padding(target: torch.Tensor, layout: Layout) -> None:
    for dim, runs in enumerate(layout.runs):
        position = 0
        for run in runs:
            if run.start is None:
                target.narrow(dim, position, run.length).zero_()
            position += run.length
