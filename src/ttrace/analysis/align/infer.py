"""Inference: what shapes say where no layout is known.

Enters: records and a logical shape. Leaves: the logical shape as one trace can tell it, the cuts of
a microbatch in it, and the layout of a record among ranks that share its samples. Nothing is
placed here.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from ttrace.analysis.align.holdings import Cut, Holdings, Shape, grown, key_of, without
from ttrace.core.layout import Layout, Run
from ttrace.core.record import Record


@dataclass(frozen=True, slots=True)
class OwnShape:
    """A logical shape as far as one trace can tell.

    `stacked`: ranks hold different values and nothing says how they belong together. Side by side
    along the first dim they can at least be compared with a run in the same layout.
    `guessed`: the same for all samples, with a row for each: a constant, or a table that happens
    to have as many rows.
    """

    shape: Shape
    stacked: bool = False
    guessed: bool = False


def own_shape(holdings: Holdings, records: Sequence[Record]) -> OwnShape:
    """The logical shape as far as this trace alone can tell."""
    record = max(records, key=lambda record: _share(holdings, record))
    shape = record.shape if record.layout is None else record.layout.shape
    whole = _whole_batch(holdings, record, shape)
    if shape and record.layout is None and holdings.peers_differ(records):
        return OwnShape((whole[0] * len(holdings.peers(record)), *whole[1:]), stacked=True)
    return OwnShape(whole, guessed=whole != shape and holdings.same_for_all_samples(record))


def _share(holdings: Holdings, record: Record) -> tuple[bool, int]:
    """How much of the batch a record has; those with the longest samples come first."""
    part = holdings.part(record)
    return part is None or part.span is None, holdings.batch.held(key_of(record))


def _whole_batch(holdings: Holdings, record: Record, shape: Shape) -> Shape:
    """The shape with its batch dim grown from this microbatch to the whole batch."""
    key = key_of(record)
    if not record.id.kind.is_activation or not holdings.batch.splits(key) or not shape:
        return shape
    # A constant (a mask, zeros) is the same for all samples too, but has a row for each.
    held = holdings.batch.held(key)
    if record.batch_dim is not None:
        return _more_samples(holdings, record, shape)
    if holdings.same_for_all_samples(record) and _size(shape, holdings.batch.dim) != held:
        return shape
    return grown(holdings.batch, key, shape)


def _size(shape: Shape, dim: int) -> int:
    """Of a dim that a tensor may not have: then 0."""
    return shape[dim] if dim < len(shape) else 0


def _more_samples(holdings: Holdings, record: Record, shape: Shape) -> Shape:
    """The record's layout says all but the samples."""
    key, dim = key_of(record), record.batch_dim
    held = holdings.batch.held(key)
    if dim is None or dim < 0 or not held or not _size(shape, dim) or shape[dim] % held:
        return shape
    size = shape[dim] // held * holdings.batch.sizes[key[0]]
    return (*shape[:dim], size, *shape[dim + 1 :])


def cuts_of(holdings: Holdings, record: Record, shape: Shape) -> list[Cut]:
    key, dim = key_of(record), record.batch_dim
    if dim is None:
        return holdings.cuts(key, shape, record.id.module)
    samples = holdings.batch.sizes[key[0]]
    if dim < 0 or not samples or not _size(shape, dim) or shape[dim] % samples:
        return []
    unit = shape[dim] // samples
    runs = [
        Run((run.start or 0) * unit, run.length * unit) for run in holdings.batch.parts[key].samples
    ]
    return [Cut(Layout.full(shape).take(dim, runs))]


def is_shard_of_table(
    holdings: Holdings, record: Record, records: Sequence[Record], shape: Shape
) -> bool:
    """The same for all samples, without a row for each, and other ranks hold other parts."""
    key, dim = key_of(record), holdings.batch.dim
    per_sample = holdings.batch.held(key), holdings.batch.sizes[key[0]]
    if not shape or (_size(record.shape, dim), _size(shape, dim)) == per_sample:
        return False
    return holdings.same_for_all_samples(record) and holdings.peers_differ(records)


def adds_to_gathered(
    holdings: Holdings, record: Record, records: Sequence[Record], cut: Cut
) -> bool:
    """Whether this is a rank's share of the gradient of whole sequences (gathered keys).

    Ranks with other positions of the same samples then hold other values in the same place.
    """
    if not cut.gathered or not record.id.kind.is_gradient_of_activation:
        return False
    mine = holdings.batch.parts[key_of(record)]
    digests = {
        other.location.xxh3
        for other in records
        if other.location is not None and other.microbatch == record.microbatch
        if holdings.batch.parts[key_of(other)].samples == mine.samples
    }
    return len(digests) > 1


def infer_layout(
    holdings: Holdings, record: Record, records: Sequence[Record], whole: Shape
) -> Layout | None:
    """One dim split over ranks that share samples, each with a chunk in rank order."""
    # A whole of [8, 64], whose samples ranks 0 to 3 share; tp has ranks 0 and 1. On rank 1
    #     [8, 16]    as on all: four of them make 64, so [:, 16:32]
    #     [8, 32]    as on all: four would make 128, two of tp make 64, so [:, 32:64]
    #     [4, 32]    None: two dims differ
    differing = [dim for dim in range(len(whole)) if record.shape[dim] != whole[dim]]
    if not differing:
        return Layout.full(whole)
    if len(differing) > 1:
        return None
    dim = differing[0]
    for ranks in _sharing(holdings, record):
        sizes = {
            other.rank: other.shape[dim]
            for other in records
            if other.rank in ranks
            and len(other.shape) == len(whole)
            and other.microbatch == record.microbatch
            and other.recompute == record.recompute
        }
        if sum(sizes.values()) == whole[dim]:
            start = sum(size for rank, size in sizes.items() if rank < record.rank)
            return Layout.full(whole).take(dim, [Run(start, record.shape[dim])])
    return None


def _sharing(holdings: Holdings, record: Record) -> Iterator[set[int]]:
    """Groups of ranks over which this record's tensor may be split: peers, then single axes."""
    peers = set(holdings.peers(record))
    yield peers
    mine = holdings.axes(record.rank)
    for axis in mine:
        yield {
            rank for rank in peers if without(holdings.axes(rank), [axis]) == without(mine, [axis])
        }
