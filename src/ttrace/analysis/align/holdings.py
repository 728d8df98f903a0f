"""Holdings: what the ranks of one trace hold of the batch, and where that sits in a logical tensor.

Enters: a trace and its batch; a part of the batch (samples, and positions where ranks split
sequences) and a logical shape. Leaves: answers about single records, and cuts: the layouts that the
tensor of a microbatch may have in the logical one, likeliest first. Which dim is the batch and
which the sequence is read off the sizes: [batch, sequence, hidden], [sequence, batch, hidden] and
[batch x sequence, hidden] all occur, and so do tensors without either. Nothing is placed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

from ttrace.analysis.batch import Batch, MicrobatchKey, Part
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout, Run, Runs
from ttrace.core.record import Record
from ttrace.trace.reader import Trace

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
    # Samples 2 and 3 of 4, in a shape
    #     [16, 4, 64]    [:, 2:4, :] first, as dim 1 has one index for each sample; then
    #                    [8:16, :, :] and [:, :, 32:64], which have several
    #     [3, 5]         nothing
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
    gathered = [Cut(layout, gathered=True) for layout in by_samples.values()]
    return [*_cuts_of_sequences(batch, key, full, by_samples), *gathered]


def _cuts_of_sequences(
    batch: Batch, key: MicrobatchKey, full: Layout, by_samples: Mapping[int, Layout]
) -> Iterator[Cut]:
    """Samples of which ranks hold some positions; dims of exactly these sizes are likelier."""
    # Positions 8 to 15 of 16, of samples 2 and 3 of 4, in a shape
    #     [4, 16, 64]    [2:4, 8:16, :] first, then [:, 8:16, :]; at last those of which a dim has
    #                    several indices for each position, as [2:4, :, 32:64]
    #     [64, 8]        tokens, sample after sample: rows 40 to 47 and 56 to 63; then position
    #                    after position: rows 34, 35, 38, 39 ... 63
    shape, part = full.shape, batch.parts[key]
    size, length = batch.sizes[key[0]], batch.lengths[key[0]]
    exact: list[Layout] = []
    multiples: list[Layout] = []
    for batch_dim, layout in [*by_samples.items(), (None, full)]:
        for dim in _likely_dims(shape, length, batch.dim):
            if dim != batch_dim and shape[dim] % length == 0:
                is_sample = batch_dim is None or shape[batch_dim] == size
                is_exact = is_sample and shape[dim] == length
                target = exact if is_exact else multiples
                target.append(layout.take(dim, _scaled(part.positions, shape[dim] // length)))
    by_tokens = (
        full.take(dim, runs)
        for dim in _dims_of(shape, size * length)
        for runs in _tokens(part, size, length)
    )
    return map(Cut, [*exact, *by_tokens, *multiples])


def _dims_of(shape: Shape, size: int) -> list[int]:
    return [dim for dim, found in enumerate(shape) if found == size]


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


Group = tuple[Part | None, int]  # part of the batch, microbatch
Axes = dict[str, tuple[int, int]]  # axis -> (index, size)


class Holdings:
    """One trace and its batch, asked about records."""

    def __init__(self, trace: Trace, batch: Batch) -> None:
        self.trace = trace
        self.batch = batch
        self._shared: dict[TensorId, bool] = {}
        self._cuts: dict[object, list[Cut]] = {}
        self._peers: dict[object, tuple[int, ...]] = {}

    def part(self, record: Record) -> Part | None:
        """The part of the batch that this record is of."""
        return self.batch.parts.get(key_of(record))

    def cuts(self, key: MicrobatchKey, shape: Shape, module: str) -> list[Cut]:
        """Where a tensor of this microbatch may sit in one of this shape; all layers ask alike."""
        asked = (key, shape, module if self.batch.others else "")
        if asked not in self._cuts:
            self._cuts[asked] = cuts(self.batch, key, shape, module)
        return self._cuts[asked]

    def axes(self, rank: int) -> Axes:
        """The coordinates of a rank."""
        return self.trace.ranks[rank].info.axes

    def peers(self, record: Record) -> tuple[int, ...]:
        """The ranks that hold the same samples in this microbatch; all where that is not known."""
        key = key_of(record)
        asked = key.step, key.microbatch, self.batch.parts.get(key)
        if asked not in self._peers:
            self._peers[asked] = self.batch.peers(key) or tuple(sorted(self.trace.ranks))
        return self._peers[asked]

    def peers_differ(self, records: Sequence[Record]) -> bool:
        """Whether ranks with the same samples hold different bytes: then these are no replicas."""
        digests: dict[object, set[str]] = defaultdict(set)
        for record in records:
            if record.location is not None and not record.recompute:
                key = (record.microbatch, self.part(record))
                digests[key].add(record.location.xxh3)
        return any(len(found) > 1 for found in digests.values())

    def same_for_all_samples(self, record: Record) -> bool:
        """A position table, a mask: microbatches of other samples hold the same bytes."""
        forward = record.id.forward
        if forward not in self._shared:
            digests: dict[Part | None, set[object]] = defaultdict(set)
            for other in self.trace.by_id().get(forward, ()):
                if other.location is not None and not other.recompute:
                    part = self.part(other)
                    digests[part].add((other.location.xxh3, other.shape))
            values = list(digests.values())
            # Not equality: that a record was lost, or differs on one rank, is seen elsewhere.
            most = max(values, key=len, default=set())
            self._shared[forward] = len(values) > 1 and all(value <= most for value in values)
        return self._shared[forward]

    def group(self, record: Record) -> Group:
        """Records of one group are of the same part of the batch."""
        return self.group_at(key_of(record))

    def group_at(self, key: MicrobatchKey) -> Group:
        return self.batch.parts.get(key), key[2]


def key_of(record: Record) -> MicrobatchKey:
    """The microbatch that a record is of: that of the rank whose samples they are."""
    rank = record.rank if record.origin is None else record.origin
    return MicrobatchKey(record.id.step, rank, record.microbatch)


def without(axes: Axes, left_out: Sequence[str]) -> Axes:
    """An axis within another, such as `pp.embedding`, is left out with it."""
    out = {name for axis in left_out for name in (axis, axis.partition(".")[0])}
    return {axis: place for axis, place in axes.items() if axis not in out}
