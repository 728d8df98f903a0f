"""Where does a record sit in the logical tensor?

In this order: the layout the record knows itself (DTensor), the samples its microbatch holds, and
its shape against the logical shape, where the ranks that hold the same samples share what is split
(infer.py). Records that add up to one value are put together by sums.py.

Tensors that are alike are placed once: all layers of a model are split in the same way. Two ids are
alike if all that placing looks at is the same: who holds which shape in which layout, how it is
stored, and who holds equal bytes; for gradients, of their values, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ttrace.analysis.align.holdings import Cut, Group, Holdings, Shape, key_of
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
from ttrace.core.form import AlikePieces, PiecesForm, records_of
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Run
from ttrace.core.logical import LogicalTensor, Piece, assemble
from ttrace.core.record import Record
from ttrace.core.rows import IntArray, RecordRows
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
        """Where one record sits: in the first cut of its microbatch that its shape fits."""
        # Of a tensor [8, 16], 8 samples, rank 1 of tp = 2 has samples 4 to 7. Its record may be
        #     [4, 16]   the cut [4:8, :]                    -> [4:8, :]
        #     [4, 8]    the same cut, halved over tp        -> [4:8, 8:16]
        #     [8, 16]   all of it, though samples are split -> whole, and shared by microbatches
        #     [5, 16]   no cut, nor a shard of one          -> Unplaceable
        local = record.shape if record.layout is None else record.layout.shape
        is_split = self._is_split(record)
        is_reordered = is_split and self._holdings.batch.reorders(key_of(record))
        is_shared = (is_split and not is_reordered) and (
            local == shape or is_shard_of_table(self._holdings, record, records, shape)
        )
        contributes = self._contributes(record, shape, is_shared=is_shared)
        whole = Cut(Layout.full(shape))
        if local == shape and not is_reordered:
            layout = whole.layout if record.layout is None else record.layout
            return Placed(record, layout, whole.layout, contributes=contributes, shared=is_shared)
        if len(local) != len(shape):
            raise Unplaceable(
                f"rank {record.rank} holds {len(local)} dims {local}, expected {len(shape)} "
                f"dims {shape}"
            )
        parts = cuts_of(self._holdings, record, shape) if is_split else []
        cuts = [whole, *parts] if is_shared else [*parts, whole]
        placed = self._place_in(cuts, record, records, contributes=contributes, shared=is_shared)
        if placed is None:
            raise Unplaceable(
                f"rank {record.rank} holds shape {local} in microbatch {record.microbatch}, which "
                f"is no shard "
                f"of {shape} over samples or over ranks {self._holdings.peers(record)}"
            )
        return placed

    def _is_split(self, record: Record) -> bool:
        """Whether its microbatch has less than the whole batch, or has it in another order."""
        batch = self._holdings.batch
        is_split = record.id.kind.is_activation and batch.splits(key_of(record))
        if is_split and batch.is_unknown_in(record.id.module):
            raise Unplaceable("its rows are tokens in an order that nothing tells")
        return is_split

    def _place_in(
        self,
        cuts: Sequence[Cut],
        record: Record,
        records: Sequence[Record],
        *,
        contributes: bool,
        shared: bool,
    ) -> Placed | None:
        """The record in the first cut that it, or its layout, fits; None where it fits none."""
        for cut in cuts:
            outer, inner = cut.layout, record.layout
            if inner is None:
                inner = infer_layout(self._holdings, record, records, outer.local_shape)
            if inner is not None and inner.shape == outer.local_shape:
                is_term = contributes and (outer.is_full or not shared)
                return Placed(
                    record,
                    outer.then(inner),
                    outer,
                    contributes=is_term or adds_to_gathered(self._holdings, record, records, cut),
                    shared=shared or cut.gathered,
                    absent=cut.absent,
                )
        return None

    def _contributes(self, record: Record, shape: Shape, *, is_shared: bool) -> bool:
        """Whether microbatches add up to the value: a loss, or the gradient of what they share."""
        kind = record.id.kind
        is_loss = kind is Kind.LOSS and key_of(record) in self._holdings.batch.parts
        adds = is_shared and (kind.is_gradient_of_activation or not shape)
        return is_loss or kind.is_unreduced or adds


class Likeness:
    """Numbers the ids of one trace."""

    def __init__(self, holdings: Holdings) -> None:
        batch = holdings.batch
        self._by_id = holdings.trace.by_id()
        self._is_of_modules = bool(batch.others or batch.unknown)  # rows of some modules only
        self._numbers: dict[object, int] = {}
        self._forward: dict[TensorId, int] = {}
        self._last: tuple[Sequence[Record], object] = (), None  # it is asked of them again

    def of(self, records: Sequence[Record]) -> object:
        """What ids have in common that are placed alike; these are all records of one."""
        if self._last[0] is not records:
            id_ = records[0].id
            module = id_.module if self._is_of_modules else ""
            number = self._number(records)
            if records is self._by_id.get(id_):
                self._forward[id_] = number
            self._last = records, (id_.step, id_.kind, module, number, self._of_values(id_))
        return self._last[1]

    def _of_values(self, id_: TensorId) -> int:
        """Of the values that a gradient belongs to."""
        if not id_.kind.is_activation:
            return -1
        forward = id_.forward if id_.kind.is_gradient_of_activation else id_
        if forward not in self._forward:
            self._forward[forward] = self._number(self._by_id.get(forward, ()))
        return self._forward[forward]

    def _number(self, records: Sequence[Record]) -> int:
        seen = RecordRows.of(records).likeness() if records else None
        return self._numbers.setdefault(seen, len(self._numbers))


@dataclass(frozen=True, slots=True)
class Plan:
    """A logical tensor by the numbers of its records."""

    tensor: LogicalTensor
    pieces: tuple[PiecesForm, IntArray]
    replicas: tuple[PiecesForm, IntArray]

    @classmethod
    def of(
        cls, tensor: LogicalTensor, records: Sequence[Record], forms: dict[PiecesForm, PiecesForm]
    ) -> Plan | None:
        """None where other records than these very ones are part of it.

        `forms` are those of other plans.
        """
        numbers = {id(record): number for number, record in enumerate(records)}
        if any(id(record) not in numbers for record in records_of(tensor)):
            return None
        # The same object for all forms that are equal: they are compared in no time then.
        pieces, replicas = (
            (
                forms.setdefault(form := PiecesForm.of(side), form),
                np.array([numbers[id(r)] for piece in side for r in piece.records], np.int64),
            )
            for side in (tensor.pieces, tensor.replicas)
        )
        return cls(tensor, pieces, replicas)

    def with_records(self, records: Sequence[Record]) -> LogicalTensor:
        rows = RecordRows.of(records)
        pieces, replicas = (
            AlikePieces(form, rows.take(numbers)) for form, numbers in (self.pieces, self.replicas)
        )
        return LogicalTensor(
            shape=self.tensor.shape,
            pieces=pieces,
            replicas=replicas,
            gaps=self.tensor.gaps,
            notes=self.tensor.notes,
            absent=self.tensor.absent,
        )
