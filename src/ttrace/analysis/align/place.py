"""Where does a record sit in the logical tensor?

In this order: the layout the record knows itself (DTensor), the samples its microbatch holds, and
its shape against the logical shape, where the ranks that hold the same samples share what is split
(infer.py). Records that add up to one value are put together by sums.py.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence

from ttrace.analysis.align.alike import Likeness, Plan
from ttrace.analysis.align.cuts import Cut, Shape
from ttrace.analysis.align.holdings import Group, Holdings, key_of
from ttrace.analysis.align.infer import (
    OwnShape,
    adds_to_gathered,
    cuts_of,
    infer_layout,
    is_shard_of_table,
    own_shape,
)
from ttrace.analysis.align.sums import Placed, Unplaceable, pieces_of
from ttrace.analysis.batch import Batch
from ttrace.core.form import PiecesForm
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Run
from ttrace.core.logical import LogicalTensor, Piece, assemble
from ttrace.core.record import Record
from ttrace.errors import LayoutError
from ttrace.trace.plan import Position
from ttrace.trace.reader import Trace

RecordKey = tuple[TensorId, int, int, int | None]  # id, rank, microbatch, origin


class Placer:
    """Places the records of one trace, and remembers where each sits."""

    def __init__(self, trace: Trace, batch: Batch) -> None:
        self._holdings = Holdings(trace, batch)
        self._alike = Likeness(self._holdings)
        self._shapes: dict[object, OwnShape] = {}
        self._plans: dict[object, tuple[Plan, Sequence[Placed]]] = {}
        self._forms: dict[PiecesForm, PiecesForm] = {}
        self._placed: list[tuple[Sequence[Record], Sequence[Placed]]] = []
        self._known: dict[object, LogicalTensor | str] = {}

    def is_guess(self, id_: TensorId) -> bool:
        """Whether nobody knows the samples of this tensor: that it does not fit is no mistake."""
        batch = self._holdings.batch
        return id_.kind.is_activation and (bool(batch.notes) or batch.is_unknown_in(id_.module))

    def own_shape(self, records: Sequence[Record]) -> OwnShape:
        """The logical shape as far as this trace alone can tell."""
        likeness = self._alike.of(records)
        if likeness not in self._shapes:
            self._shapes[likeness] = own_shape(self._holdings, records)
        return self._shapes[likeness]

    def place(self, records: Sequence[Record], own: OwnShape) -> LogicalTensor | str:
        """The logical tensor of this shape that the records make up, or why they do not."""
        # A reference is placed again for every run that is compared with it; a cropped vocabulary
        # has other layouts.
        asked = (records[0].id, own, self._alike.of(records))
        if asked not in self._known:
            self._known[asked] = self._as_another(records, own)
        return self._known[asked]

    def _as_another(self, records: Sequence[Record], own: OwnShape) -> LogicalTensor | str:
        """As one that is alike in all that counts, where one was placed before."""
        likeness = own, self._alike.of(records)
        if likeness in self._plans:
            known, placed = self._plans[likeness]
            self._placed.append((records, placed))
            return known.with_records(records)
        made = tuple(records)  # that can be told apart
        tensor = self._put_together(made, own)
        if not isinstance(tensor, LogicalTensor):
            return tensor
        plan = Plan.of(tensor, made, self._forms)
        if plan is None:
            return tensor
        self._plans[likeness] = plan, self._placed[-1][1]
        return plan.with_records(records)

    def _put_together(self, records: Sequence[Record], own: OwnShape) -> LogicalTensor | str:
        try:
            placed = [
                self._stack(record, own.shape)
                if own.stacked
                else self._place(record, records, own.shape)
                for record in records
            ]
            pieces = [*pieces_of(self._holdings, placed), *self._nothing(records, own.shape)]
            inferred = any(
                item.record.layout is None and item.layout.runs != item.outer.runs
                for item in placed
            )
            tensor = assemble(
                own.shape,
                pieces,
                ["layout inferred from the shape"] if inferred else [],
                absent=tuple(dict.fromkeys(layout for item in placed for layout in item.absent)),
            )
        except (Unplaceable, LayoutError) as problem:
            return str(problem)
        self._placed.append((records, placed))
        return tensor

    def _nothing(self, records: Sequence[Record], shape: Shape) -> list[Piece]:
        """Zeros for microbatches of which no rank has a gradient: nothing there needed one."""
        id_, seen = records[0].id, {record.microbatch for record in records}
        if not id_.kind.is_gradient_of_activation:
            return []
        values = [
            value
            for value in self._holdings.trace.by_id().get(id_.forward, ())
            if value.microbatch not in seen and value.location is not None and not value.recompute
        ]
        placed = [self._place(value, values, shape) for value in values]
        return [
            Piece(layout=item.layout, records=(item.record,), factor=0.0)
            for item in placed
            if not item.contributes
        ]

    @property
    def positions(self) -> dict[RecordKey, Position]:
        """Where every record sits, for a later run that must not guess."""
        return {key: at for known in self._placed for key, at in self._positions(*known)}

    def _positions(
        self, records: Sequence[Record], placed: Sequence[Placed]
    ) -> Iterator[tuple[RecordKey, Position]]:
        """Of records that sit as others that are alike do."""
        groups: dict[Layout, dict[Group, None]] = defaultdict(dict)
        for item in placed:
            groups[item.layout][self._holdings.group(item.record)] = None
        for record, item in zip(records, placed, strict=True):
            if not record.recompute:
                index, count = 0, 1
                if item.shared:
                    sharing = list(groups[item.layout])
                    index, count = sharing.index(self._holdings.group(record)), len(sharing)
                key = (record.id, record.rank, record.microbatch, record.origin)
                yield key, Position(layout=item.layout, outer=item.outer, share=(index, count))

    def _stack(self, record: Record, shape: Shape) -> Placed:
        peers = self._holdings.peers(record)
        if record.layout is not None or len(record.shape) != len(shape) or shape[0] % len(peers):
            raise Unplaceable(f"rank {record.rank} holds shape {record.shape}, expected {shape}")
        part = shape[0] // len(peers)
        mine = Layout.full(shape).take(0, [Run(peers.index(record.rank) * part, part)])
        whole = self._place(record, [record], mine.local_shape)
        return Placed(record, mine.then(whole.layout), mine, contributes=whole.contributes)

    def _place(self, record: Record, records: Sequence[Record], shape: Shape) -> Placed:
        known = record.layout
        local = record.shape if known is None else known.shape
        key = key_of(record)
        split = record.id.kind.is_activation and self._holdings.batch.splits(key)
        if split and self._holdings.batch.is_unknown_in(record.id.module):
            raise Unplaceable("its rows are tokens in an order that nothing tells")
        reordered = split and self._holdings.batch.reorders(key)
        shared = split and not reordered
        shared = shared and (
            local == shape or is_shard_of_table(self._holdings, record, records, shape)
        )
        contributes = record.id.kind is Kind.LOSS and key in self._holdings.batch.parts
        contributes = contributes or record.id.kind.is_unreduced
        if shared and (record.id.kind.is_gradient_of_activation or not shape):
            contributes = True
        if local == shape and not reordered:
            layout = Layout.full(shape) if known is None else known
            full = Layout.full(shape)
            return Placed(record, layout, full, contributes=contributes, shared=shared)
        if len(local) != len(shape):
            raise Unplaceable(
                f"rank {record.rank} holds {len(local)} dims {local}, expected {len(shape)} "
                f"dims {shape}"
            )
        whole = Cut(Layout.full(shape))
        parts = cuts_of(self._holdings, record, shape) if split else []
        for cut in [whole, *parts] if shared else [*parts, whole]:
            outer = cut.layout
            inner = (
                known
                if known is not None
                else infer_layout(self._holdings, record, records, outer.local_shape)
            )
            if inner is not None and inner.shape == outer.local_shape:
                term = contributes and (outer.is_full or not shared)
                term = term or adds_to_gathered(self._holdings, record, records, cut)
                return Placed(
                    record,
                    outer.then(inner),
                    outer,
                    contributes=term,
                    shared=shared or cut.gathered,
                    absent=cut.absent,
                )
        raise Unplaceable(
            f"rank {record.rank} holds shape {local} in microbatch {record.microbatch}, which "
            f"is no shard "
            f"of {shape} over samples or over ranks {self._holdings.peers(record)}"
        )
