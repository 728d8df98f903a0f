"""Holdings: what the ranks of one trace hold of the batch, and which of them hold the same.

Enters: a trace and its batch. Leaves: answers about single records; nothing is placed here.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

from ttrace.analysis.align.cuts import Cut, Shape, cuts
from ttrace.analysis.batch import Batch, MicrobatchKey, Part
from ttrace.core.ids import TensorId
from ttrace.core.record import Record
from ttrace.trace.reader import Trace

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
