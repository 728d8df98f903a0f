"""Where does a record sit in the logical tensor?

In this order: the layout the record knows itself (DTensor), the samples its microbatch holds, and
its shape against the logical shape, where the ranks that hold the same samples share what is split.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ttrace.align.batch import Batch
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Run, Runs
from ttrace.core.logical import Piece
from ttrace.core.reader import Trace
from ttrace.core.record import Record

Shape = tuple[int, ...]


class Unplaceable(Exception):
    """A record whose place in the logical tensor cannot be told."""


@dataclass(frozen=True, slots=True)
class _Placed:
    record: Record
    layout: Layout
    # Every microbatch holds the whole shape and contributes to the value, as to a loss.
    contributes: bool = False


class Placer:
    """Places the records of one trace."""

    def __init__(self, trace: Trace, batch: Batch) -> None:
        self._trace = trace
        self._batch = batch
        self._shared: dict[TensorId, bool] = {}

    def own_shape(self, records: Sequence[Record]) -> Shape:
        """The logical shape of a trusted trace's tensor, where nothing else says it."""
        record = records[0]
        shape = record.shape if record.layout is None else record.layout.shape
        shard = _shard(record)
        if not record.id.kind.is_activation or not self._batch.splits(shard) or not shape:
            return shape
        if self._same_for_all_samples(record):
            return shape
        held, size = self._batch.held(shard), self._batch.sizes[shard[0]]
        for dim in self._dims(shape):
            if shape[dim] % held == 0:
                return (*shape[:dim], shape[dim] // held * size, *shape[dim + 1 :])
        return shape

    def pieces(self, records: Sequence[Record], shape: Shape) -> tuple[list[Piece], list[str]]:
        """Every record as a piece; partial sums and contributions of microbatches grouped."""
        placed = [self._place(record, records, shape) for record in records]
        notes = []
        if any(item.record.layout is None and not item.layout.is_full for item in placed):
            notes.append("layout inferred from the shape")
        pieces = [*self._plain(placed), *self._partial_sums(placed), *self._contributions(placed)]
        return pieces, notes

    def _place(self, record: Record, records: Sequence[Record], shape: Shape) -> _Placed:
        known = record.layout
        local = record.shape if known is None else known.shape
        shard = _shard(record)
        split = record.id.kind.is_activation and self._batch.splits(shard)
        shared = split and (local == shape or self._same_for_all_samples(record))
        contributes = record.id.kind is Kind.LOSS and shard in self._batch.samples
        if shared and (record.id.kind.is_gradient_of_activation or not shape):
            contributes = True
        if local == shape:
            layout = Layout.full(shape) if known is None else known
            return _Placed(record, layout, contributes=contributes)
        if len(local) != len(shape):
            raise Unplaceable(
                f"rank {record.rank} holds {len(local)} dims {local}, expected {len(shape)} "
                f"dims {shape}"
            )
        for outer in self._outers(record, shape, split=split and not shared):
            inner = known if known is not None else self._infer(record, records, outer.local_shape)
            if inner is not None and inner.shape == outer.local_shape:
                return _Placed(record, outer.then(inner), contributes=contributes)
        raise Unplaceable(
            f"rank {record.rank} holds shape {local} in microbatch {record.microbatch}, which "
            f"is no shard "
            f"of {shape} over samples or over ranks {self._batch.peers(shard) or (record.rank,)}"
        )

    def _same_for_all_samples(self, record: Record) -> bool:
        """A position table, a mask: microbatches of other samples hold the same bytes."""
        kinds = {Kind.GRAD_INPUT: Kind.INPUT, Kind.GRAD_OUTPUT: Kind.OUTPUT}
        forward = replace(record.id, kind=kinds.get(record.id.kind, record.id.kind))
        if forward not in self._shared:
            digests: dict[Runs | None, set[object]] = defaultdict(set)
            for other in self._trace.by_id().get(forward, []):
                if other.location is not None and not other.recompute:
                    samples = self._batch.samples.get(_shard(other))
                    digests[samples].add((other.location.xxh3, other.shape))
            values = list(digests.values())
            self._shared[forward] = len(values) > 1 and all(value == values[0] for value in values)
        return self._shared[forward]

    def _outers(self, record: Record, shape: Shape, *, split: bool) -> Iterator[Layout]:
        """The logical tensor cut to this microbatch's samples, by each dim that may be it."""
        full = Layout.full(shape)
        if split:
            shard = _shard(record)
            size = self._batch.sizes[shard[0]]
            for dim in self._dims(shape):
                if shape[dim] % size == 0:
                    unit = shape[dim] // size
                    yield full.take(dim, _scaled(self._batch.samples[shard], unit))
        yield full

    def _infer(self, record: Record, records: Sequence[Record], whole: Shape) -> Layout | None:
        """One dim split over ranks that share samples, each with a chunk in rank order."""
        differing = [dim for dim in range(len(whole)) if record.shape[dim] != whole[dim]]
        if not differing:
            return Layout.full(whole)
        if len(differing) > 1:
            return None
        dim = differing[0]
        for ranks in self._sharing(record):
            sizes = {
                other.rank: other.shape[dim]
                for other in records
                if other.rank in ranks
                and other.microbatch == record.microbatch
                and other.recompute == record.recompute
            }
            if sum(sizes.values()) == whole[dim]:
                start = sum(size for rank, size in sizes.items() if rank < record.rank)
                return Layout.full(whole).take(dim, [Run(start, record.shape[dim])])
        return None

    def _sharing(self, record: Record) -> Iterator[set[int]]:
        """Groups of ranks over which this record's tensor may be split: peers, then single axes."""
        peers = set(self._batch.peers(_shard(record))) or set(self._trace.ranks)
        yield peers
        mine = self._trace.ranks[record.rank].info.axes
        for axis in mine:
            yield {
                rank
                for rank in peers
                if _without(self._trace.ranks[rank].info.axes, [axis]) == _without(mine, [axis])
            }

    def _dims(self, shape: Shape) -> list[int]:
        """Dims in the order in which they are likely to be the batch."""
        return sorted(range(len(shape)), key=lambda dim: (dim != self._batch.dim, dim))

    def _plain(self, placed: list[_Placed]) -> Iterator[Piece]:
        for item in placed:
            if not item.contributes and not item.layout.partial:
                yield Piece(layout=item.layout, records=(item.record,))

    def _partial_sums(self, placed: list[_Placed]) -> Iterator[Piece]:
        groups: dict[object, list[_Placed]] = defaultdict(list)
        for item in placed:
            if item.layout.partial and not item.contributes:
                axes = self._trace.ranks[item.record.rank].info.axes
                others = tuple(sorted(_without(axes, item.layout.partial).items()))
                record = item.record
                groups[item.layout, record.microbatch, record.recompute, others].append(item)
        for group in groups.values():
            first = group[0]
            axes = self._trace.ranks[first.record.rank].info.axes
            expected = 1
            for axis in first.layout.partial:
                expected *= axes[axis][1] if axis in axes else 1
            if len(group) != expected:
                ranks = [item.record.rank for item in group]
                raise Unplaceable(
                    f"a partial sum over {', '.join(first.layout.partial)} needs {expected} terms, "
                    f"found {len(group)} (ranks {ranks})"
                )
            yield Piece(layout=first.layout, records=tuple(item.record for item in group))

    def _contributions(self, placed: list[_Placed]) -> Iterator[Piece]:
        """The n-th rank of every group of ranks that share samples, summed over the groups.

        Where the ranks of a group hold terms of a sum themselves, all of them make one piece.
        """
        contributing = [item for item in placed if item.contributes]
        if not contributing:
            return
        groups: dict[object, list[_Placed]] = defaultdict(list)
        for item in contributing:
            samples = self._batch.samples[_shard(item.record)]
            groups[samples, item.record.microbatch, item.record.recompute].append(item)
        # A plain output that is one number a microbatch (an auxiliary loss) is compared as a mean.
        is_mean = contributing[0].record.id.kind in (Kind.OUTPUT, Kind.INPUT)
        if contributing[0].layout.partial:
            columns = [contributing]
        else:
            width = max(len(group) for group in groups.values())
            columns = [
                [group[min(nth, len(group) - 1)] for group in groups.values()]
                for nth in range(width)
            ]
        for terms in columns:
            yield Piece(
                layout=terms[0].layout,
                records=tuple(item.record for item in terms),
                factor=1 / len(terms) if is_mean else 1.0,
            )


def _shard(record: Record) -> tuple[int, int, int]:
    return record.id.step, record.rank, record.microbatch


def _scaled(runs: Runs, unit: int) -> list[Run]:
    return [Run((run.start or 0) * unit, run.length * unit) for run in runs]


def _without(
    axes: dict[str, tuple[int, int]], left_out: Sequence[str]
) -> dict[str, tuple[int, int]]:
    return {axis: place for axis, place in axes.items() if axis not in left_out}
