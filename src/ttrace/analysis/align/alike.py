"""Tensors that are alike are placed once: all layers of a model are split in the same way.

Enters: the records of an id. Leaves: a number that two ids share if all that placing looks at is
the same: who holds which shape in which layout, how it is stored, and who holds equal bytes; for
gradients, of their values, too. And the plan of one of them made into that of another. Nothing is
placed here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ttrace.analysis.align.holdings import Holdings
from ttrace.core.form import AlikePieces, PiecesForm, records_of
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.record import Record
from ttrace.core.rows import IntArray, RecordRows


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
