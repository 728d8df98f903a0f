"""Where does a record sit in the logical tensor?

In this order: the layout the record knows itself (DTensor), the samples its microbatch holds, and
its shape against the logical shape, where the ranks that hold the same samples share what is split.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from ttrace.analysis.align.cuts import Cut, Shape, cuts, grown
from ttrace.analysis.batch import Batch, MicrobatchKey, Part
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Run
from ttrace.core.logical import LogicalTensor, Piece, assemble
from ttrace.core.record import Record
from ttrace.trace.plan import Position
from ttrace.trace.reader import Trace


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


class Unplaceable(Exception):
    """A record whose place in the logical tensor cannot be told."""


@dataclass(frozen=True, slots=True)
class _Placed:
    record: Record
    layout: Layout
    outer: Layout  # of the microbatch; the layout splits it further
    # Every microbatch holds the whole shape and contributes to the value, as to a loss.
    contributes: bool = False
    shared: bool = False  # the same for all samples, or for all positions


@dataclass(frozen=True, slots=True)
class _Term:
    """Records that add up to one value: a single one, or the terms of a partial sum."""

    layout: Layout
    records: tuple[Record, ...]
    contributes: bool


_Group = tuple[Part | None, int]  # part of the batch, microbatch
RecordKey = tuple[TensorId, int, int, int | None]  # id, rank, microbatch, origin


class Placer:
    """Places the records of one trace."""

    def __init__(self, trace: Trace, batch: Batch) -> None:
        self._trace = trace
        self._batch = batch
        self._shared: dict[TensorId, bool] = {}
        self.positions: dict[RecordKey, Position] = {}

    def own_shape(self, records: Sequence[Record]) -> OwnShape:
        """The logical shape as far as this trace alone can tell."""
        record = max(records, key=lambda record: self._batch.held(_key(record)))
        shape = record.shape if record.layout is None else record.layout.shape
        whole = self._whole_batch(record, shape)
        if shape and record.layout is None and self._peers_differ(records):
            return OwnShape((whole[0] * len(self._peers(record)), *whole[1:]), stacked=True)
        return OwnShape(whole, guessed=whole != shape and self._same_for_all_samples(record))

    def place(self, records: Sequence[Record], own: OwnShape) -> LogicalTensor | str:
        """The logical tensor of this shape that the records make up, or why they do not."""
        try:
            placed = [
                self._stack(record, own.shape)
                if own.stacked
                else self._place(record, records, own.shape)
                for record in records
            ]
            terms = self._terms(placed)
            pieces = [
                *(Piece(layout=t.layout, records=t.records) for t in terms if not t.contributes),
                *self._contributions([term for term in terms if term.contributes]),
            ]
        except Unplaceable as problem:
            return str(problem)
        self._remember(placed)
        inferred = any(
            item.record.layout is None and item.layout.runs != item.outer.runs for item in placed
        )
        return assemble(own.shape, pieces, ["layout inferred from the shape"] if inferred else [])

    def _remember(self, placed: Sequence[_Placed]) -> None:
        """Keep where every record sits, for a later run that must not guess."""
        groups: dict[Layout, dict[_Group, None]] = defaultdict(dict)
        for item in placed:
            groups[item.layout][self._group(item.record)] = None
        for item in placed:
            record = item.record
            if not record.recompute:
                index, count = 0, 1
                if item.shared:
                    sharing = list(groups[item.layout])
                    index, count = sharing.index(self._group(record)), len(sharing)
                key = (record.id, record.rank, record.microbatch, record.origin)
                self.positions[key] = Position(
                    layout=item.layout, outer=item.outer, share=(index, count)
                )

    def _whole_batch(self, record: Record, shape: Shape) -> Shape:
        """The shape with its batch dim grown from this microbatch to the whole batch."""
        key = _key(record)
        if not record.id.kind.is_activation or not self._batch.splits(key) or not shape:
            return shape
        # A constant (a mask, zeros) is the same for all samples too, but has a row for each.
        held = self._batch.held(key)
        if record.batch_dim is not None:
            return self._more_samples(record, shape)
        if self._same_for_all_samples(record) and shape[self._batch.dim] != held:
            return shape
        return grown(self._batch, key, shape)

    def _more_samples(self, record: Record, shape: Shape) -> Shape:
        """The record's layout says all but the samples."""
        key, dim = _key(record), record.batch_dim
        held = self._batch.held(key)
        if dim is None or dim < 0 or not held or shape[dim] % held:
            return shape
        size = shape[dim] // held * self._batch.sizes[key[0]]
        return (*shape[:dim], size, *shape[dim + 1 :])

    def _cuts(self, record: Record, shape: Shape) -> list[Cut]:
        key, dim = _key(record), record.batch_dim
        if dim is None:
            return cuts(self._batch, key, shape)
        if dim < 0 or shape[dim] % self._batch.sizes[key[0]]:
            return []
        unit = shape[dim] // self._batch.sizes[key[0]]
        runs = [
            Run((run.start or 0) * unit, run.length * unit)
            for run in self._batch.parts[key].samples
        ]
        return [Cut(Layout.full(shape).take(dim, runs))]

    def _stack(self, record: Record, shape: Shape) -> _Placed:
        peers = self._peers(record)
        if record.layout is not None or len(record.shape) != len(shape) or shape[0] % len(peers):
            raise Unplaceable(f"rank {record.rank} holds shape {record.shape}, expected {shape}")
        part = shape[0] // len(peers)
        mine = Layout.full(shape).take(0, [Run(peers.index(record.rank) * part, part)])
        whole = self._place(record, [record], mine.local_shape)
        return _Placed(record, mine.then(whole.layout), mine, contributes=whole.contributes)

    def _peers(self, record: Record) -> tuple[int, ...]:
        return self._batch.peers(_key(record)) or tuple(sorted(self._trace.ranks))

    def _peers_differ(self, records: Sequence[Record]) -> bool:
        """Whether ranks with the same samples hold different bytes: then these are no replicas."""
        digests: dict[object, set[str]] = defaultdict(set)
        for record in records:
            if record.location is not None and not record.recompute:
                key = (record.microbatch, self._batch.parts.get(_key(record)))
                digests[key].add(record.location.xxh3)
        return any(len(found) > 1 for found in digests.values())

    def _place(self, record: Record, records: Sequence[Record], shape: Shape) -> _Placed:
        known = record.layout
        local = record.shape if known is None else known.shape
        key = _key(record)
        split = record.id.kind.is_activation and self._batch.splits(key)
        reordered = split and self._batch.reorders(key)
        shared = split and not reordered
        shared = shared and (local == shape or self._is_shard_of_table(record, records, shape))
        contributes = record.id.kind is Kind.LOSS and key in self._batch.parts
        contributes = contributes or record.id.kind.is_unreduced
        if shared and (record.id.kind.is_gradient_of_activation or not shape):
            contributes = True
        if local == shape and not reordered:
            layout = Layout.full(shape) if known is None else known
            full = Layout.full(shape)
            return _Placed(record, layout, full, contributes=contributes, shared=shared)
        if len(local) != len(shape):
            raise Unplaceable(
                f"rank {record.rank} holds {len(local)} dims {local}, expected {len(shape)} "
                f"dims {shape}"
            )
        whole = Cut(Layout.full(shape))
        parts = self._cuts(record, shape) if split else []
        for cut in [whole, *parts] if shared else [*parts, whole]:
            outer = cut.layout
            inner = known if known is not None else self._infer(record, records, outer.local_shape)
            if inner is not None and inner.shape == outer.local_shape:
                term = contributes and (outer.is_full or not shared)
                term = term or self._adds_to_gathered(record, records, cut)
                return _Placed(
                    record,
                    outer.then(inner),
                    outer,
                    contributes=term,
                    shared=shared or cut.gathered,
                )
        raise Unplaceable(
            f"rank {record.rank} holds shape {local} in microbatch {record.microbatch}, which "
            f"is no shard "
            f"of {shape} over samples or over ranks {self._peers(record)}"
        )

    def _adds_to_gathered(self, record: Record, records: Sequence[Record], cut: Cut) -> bool:
        """Whether this is a rank's share of the gradient of whole sequences (gathered keys).

        Ranks with other positions of the same samples then hold other values in the same place.
        """
        if not cut.gathered or not record.id.kind.is_gradient_of_activation:
            return False
        mine = self._batch.parts[_key(record)]
        digests = {
            other.location.xxh3
            for other in records
            if other.location is not None and other.microbatch == record.microbatch
            if self._batch.parts[_key(other)].samples == mine.samples
        }
        return len(digests) > 1

    def _same_for_all_samples(self, record: Record) -> bool:
        """A position table, a mask: microbatches of other samples hold the same bytes."""
        forward = _forward(record.id)
        if forward not in self._shared:
            digests: dict[Part | None, set[object]] = defaultdict(set)
            for other in self._trace.by_id().get(forward, []):
                if other.location is not None and not other.recompute:
                    part = self._batch.parts.get(_key(other))
                    digests[part].add((other.location.xxh3, other.shape))
            values = list(digests.values())
            # Not equality: that a record was lost, or differs on one rank, is seen elsewhere.
            most = max(values, key=len, default=set())
            self._shared[forward] = len(values) > 1 and all(value <= most for value in values)
        return self._shared[forward]

    def _is_shard_of_table(self, record: Record, records: Sequence[Record], shape: Shape) -> bool:
        """The same for all samples, without a row for each, and other ranks hold other parts."""
        key, dim = _key(record), self._batch.dim
        per_sample = self._batch.held(key), self._batch.sizes[key[0]]
        if not shape or (record.shape[dim], shape[dim]) == per_sample:
            return False
        return self._same_for_all_samples(record) and self._peers_differ(records)

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
        peers = set(self._peers(record))
        yield peers
        mine = self._trace.ranks[record.rank].info.axes
        for axis in mine:
            yield {
                rank
                for rank in peers
                if _without(self._trace.ranks[rank].info.axes, [axis]) == _without(mine, [axis])
            }

    def _terms(self, placed: Sequence[_Placed]) -> list[_Term]:
        """Partial sums over mesh axes put together; everything else is a term by itself."""
        groups: dict[object, list[_Placed]] = defaultdict(list)
        for number, item in enumerate(placed):
            groups[self._sum_key(item) if item.layout.partial else number].append(item)
        for group in groups.values():
            first = group[0]
            expected = self._sum_size(first)
            if first.layout.partial and len(group) != expected:
                ranks = [item.record.rank for item in group]
                raise Unplaceable(
                    f"a partial sum over {', '.join(first.layout.partial)} needs {expected} terms, "
                    f"found {len(group)} (ranks {ranks}, microbatch {first.record.microbatch})"
                )
        return [
            _Term(group[0].layout, tuple(i.record for i in group), group[0].contributes)
            for group in groups.values()
        ]

    def _sum_key(self, item: _Placed) -> object:
        record, axes = item.record, item.layout.partial
        others = _without(self._trace.ranks[record.rank].info.axes, axes)
        part = None
        if item.contributes:
            # The layout does not say the samples then, and the axes need not either.
            near = [
                rank
                for rank in self._peers(record)
                if _without(self._trace.ranks[rank].info.axes, axes) == others
            ]
            if len(near) == self._sum_size(item):
                part = self._batch.parts.get(_key(record))
        return (
            item.layout,
            record.microbatch,
            record.recompute,
            tuple(sorted(others.items())),
            part,
        )

    def _sum_size(self, item: _Placed) -> int:
        axes = self._trace.ranks[item.record.rank].info.axes
        return math.prod(axes[axis][1] for axis in item.layout.partial if axis in axes)

    def _contributions(self, terms: Sequence[_Term]) -> Iterator[Piece]:
        """What every microbatch adds to, summed over all of them, once for every replica."""
        columns: dict[tuple[Layout, bool], dict[_Group, list[_Term]]] = defaultdict(dict)
        for term in terms:
            groups = columns[term.layout, term.records[0].recompute]
            groups.setdefault(self._group(term.records[0]), []).append(term)
        for (layout, recompute), groups in columns.items():
            if recompute:  # microbatches that were not recomputed keep their original
                groups |= {
                    g: o for g, o in columns.get((layout, False), {}).items() if g not in groups
                }
            for nth in range(max(len(group) for group in groups.values())):
                # Groups may have replicas in different numbers.
                column = [group[min(nth, len(group) - 1)] for group in groups.values()]
                records = tuple(record for term in column for record in term.records)
                self._require_all_groups(records)
                # An output that is one number a microbatch (an auxiliary loss) is taken as a mean.
                is_mean = records[0].id.kind in (Kind.OUTPUT, Kind.INPUT)
                factor = 1 / len(column) if is_mean else 1.0
                yield Piece(layout=column[0].layout, records=records, factor=factor)

    def _require_all_groups(self, records: Sequence[Record]) -> None:
        """A gradient has a term wherever its value was; a loss, in the same microbatches."""
        id_ = records[0].id
        if id_.kind.is_unreduced:
            return  # a parameter that a microbatch does not use gets nothing from it
        if id_.kind is Kind.LOSS:
            stored = {record.microbatch for record in self._trace.by_id()[id_]}
            shards = [key for key in self._batch.parts if key[0] == id_.step]
            expected = {self._group_of(s) for s in shards if s[2] in stored}
        else:
            forward = self._trace.by_id().get(_forward(id_), [])
            expected = {self._group(record) for record in forward}
        found = {self._group(record) for record in records}
        if all(part is not None and part.positions for part, _ in found):
            # The gradient of gathered sequences has terms from all that hold their positions.
            samples = {part.samples for part, _ in found if part is not None}
            expected = {g for g in expected if g[0] is not None and g[0].samples in samples}
        missing = sorted(microbatch for _, microbatch in expected - found)
        if missing:
            raise Unplaceable(
                f"a sum over {len(expected)} microbatches of all ranks lacks {len(missing)}: "
                f"microbatch {', '.join(map(str, missing))} where ranks "
                f"{sorted({record.rank for record in records})} hold the others"
            )

    def _group(self, record: Record) -> _Group:
        """Records of one group are of the same part of the batch."""
        return self._group_of(_key(record))

    def _group_of(self, key: MicrobatchKey) -> _Group:
        return self._batch.parts.get(key), key[2]


def _forward(id_: TensorId) -> TensorId:
    """The value that a gradient belongs to; a value itself."""
    return replace(id_, kind=id_.kind.forward)


def _key(record: Record) -> MicrobatchKey:
    rank = record.rank if record.origin is None else record.origin
    return MicrobatchKey(record.id.step, rank, record.microbatch)


def _without(
    axes: dict[str, tuple[int, int]], left_out: Sequence[str]
) -> dict[str, tuple[int, int]]:
    """An axis within another, such as `pp.embedding`, is left out with it."""
    out = {name for axis in left_out for name in (axis, axis.partition(".")[0])}
    return {axis: place for axis, place in axes.items() if axis not in out}
