"""A logical tensor cut to the part of the batch that one microbatch of one rank holds.

Enters: a part (samples, and positions where ranks split sequences) and a logical shape. Leaves: the
layouts that the microbatch's tensor may have in it, likeliest first. Which dim is the batch and
which the sequence is read off the sizes: [batch, sequence, hidden], [sequence, batch, hidden] and
[batch x sequence, hidden] all occur, and so do tensors without either.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ttrace.analysis.batch import Batch, MicrobatchKey, Part
from ttrace.core.layout import Layout, Run, Runs

Shape = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Cut:
    """A layout, and whether it has all positions although the part has only some of them."""

    layout: Layout
    gathered: bool = False
    absent: tuple[Layout, ...] = ()  # padding that this part does not have


def cuts(batch: Batch, key: MicrobatchKey, shape: Shape, module: str = "") -> list[Cut]:
    """Where a tensor of this microbatch may sit in a logical tensor of this shape."""
    inside = [other for other in batch.others if other.is_inside(module)]
    beside = [other for other in batch.others if not other.within]
    first, last = (
        [cut for other in others for cut in _cuts(other, key, shape, exactly=True)]
        for others in (inside, beside)
    )
    return [*first, *_cuts(batch, key, shape), *last]


def _cuts(batch: Batch, key: MicrobatchKey, shape: Shape, *, exactly: bool = False) -> list[Cut]:
    if key not in batch.parts:
        return []
    full = Layout.full(shape)
    size, part = batch.sizes[key[0]], batch.parts[key]
    by_samples = {
        dim: full.take(dim, _scaled(part.samples, shape[dim] // size))
        for dim in _likely_dims(shape, size, batch.dim)
        if shape[dim] == size or not (shape[dim] % size or exactly)
    }
    if part.span is not None:
        return _padded_cuts(by_samples, part, batch.lengths[key[0]])
    if not part.positions:
        return [Cut(layout) for layout in by_samples.values()]
    length = batch.lengths[key[0]]
    by_positions = {
        (batch_dim, dim): layout.take(dim, _scaled(part.positions, shape[dim] // length))
        for batch_dim, layout in [*by_samples.items(), (None, full)]
        for dim in _likely_dims(shape, length, batch.dim)
        if dim != batch_dim and shape[dim] % length == 0
    }
    by_tokens = [
        full.take(dim, runs)
        for dim, tokens in enumerate(shape)
        if tokens == size * length
        for runs in _tokens(part, size, length)
    ]

    def is_exact(dims: tuple[int | None, int]) -> bool:
        return shape[dims[1]] == length and (dims[0] is None or shape[dims[0]] == size)

    exact = [layout for dims, layout in by_positions.items() if is_exact(dims)]
    multiples = [layout for dims, layout in by_positions.items() if not is_exact(dims)]
    gathered = [Cut(layout, gathered=True) for layout in by_samples.values()]
    return [*map(Cut, [*exact, *by_tokens, *multiples]), *gathered]


def _padded_cuts(by_samples: Mapping[int, Layout], part: Part, length: int) -> list[Cut]:
    """Samples that are padded to less than the length of the longest, in any dims of that length.

    Attention has two of them; a dim of features may happen to be as long.
    """
    found = []
    for batch_dim, layout in by_samples.items():
        dims = [d for d, size in enumerate(layout.shape) if size == length and d != batch_dim]
        for count in range(len(dims), -1, -1):
            found += [_shortened(layout, some, part) for some in combinations(dims, count)]
    return found


def _shortened(layout: Layout, dims: Sequence[int], part: Part) -> Cut:
    span, whole, absent = part.span, layout, []
    assert span is not None
    start, stop = span.start or 0, (span.start or 0) + span.length
    for dim in dims:
        size = layout.shape[dim]
        absent.append(layout.take(dim, [Run(0, start), Run(stop, size - stop)]))
        whole = whole.take(dim, [span])
    return Cut(whole, absent=tuple(absent))


def grown(batch: Batch, key: MicrobatchKey, shape: Shape) -> Shape:
    """The shape of a microbatch's tensor with its batch and sequence dims grown to their whole."""
    held, size = batch.held(key), batch.sizes[key[0]]
    positions = batch.held_positions(key)
    whole, batch_dim = list(shape), None
    for dim in _likely_dims(shape, held, batch.dim):
        if held and shape[dim] % held == 0:
            whole[dim], batch_dim = shape[dim] // held * size, dim
            break
    for dim in _likely_dims(shape, positions, batch.dim):
        if positions and shape[dim] % positions == 0 and dim != batch_dim:
            whole[dim] = shape[dim] // positions * batch.lengths[key[0]]
            break
    return tuple(whole)


def _likely_dims(shape: Shape, count: int, usual: int) -> list[int]:
    """Dims in the order in which they are likely to be that of so many samples or positions."""
    return sorted(range(len(shape)), key=lambda dim: (shape[dim] != count, dim != usual, dim))


def _tokens(part: Part, size: int, length: int) -> Iterator[list[Run]]:
    """Samples and positions in one dim: sample after sample, or position after position."""
    for outer, inner, unit in (
        (part.samples, part.positions, length),
        (part.positions, part.samples, size),
    ):
        indices = [index for run in outer for index in run.indices]
        yield [Run(i * unit + (run.start or 0), run.length) for i in indices for run in inner]


def _scaled(runs: Runs, unit: int) -> list[Run]:
    return [Run((run.start or 0) * unit, run.length * unit) for run in runs]
