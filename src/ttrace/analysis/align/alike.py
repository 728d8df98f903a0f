"""Tensors that are alike are placed once: all layers of a model are split in the same way.

Enters: the records of an id. Leaves: a number that two ids share if all that placing looks at is
the same: who holds which shape in which layout, and who holds equal bytes; for gradients, of their
values, too. And the plan of one of them made into that of another. Nothing is placed here.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ttrace.analysis.align.holdings import Holdings
from ttrace.core.ids import TensorId
from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.record import Record


class Likeness:
    """Numbers the ids of one trace."""

    def __init__(self, holdings: Holdings) -> None:
        batch = holdings.batch
        self._by_id = holdings.trace.by_id()
        self._is_of_modules = bool(batch.others or batch.unknown)  # rows of some modules only
        self._numbers: dict[object, int] = {}
        self._forward: dict[TensorId, int] = {}

    def of(self, records: Sequence[Record]) -> object:
        """What ids have in common that are placed alike; these are all records of one."""
        id_ = records[0].id
        module = id_.module if self._is_of_modules else ""
        return id_.step, id_.kind, module, self._number(records), self._of_values(id_)

    def _of_values(self, id_: TensorId) -> int:
        """Of the values that a gradient belongs to."""
        if not id_.kind.is_activation:
            return -1
        forward = id_.forward if id_.kind.is_gradient_of_activation else id_
        if forward not in self._forward:
            self._forward[forward] = self._number(self._by_id.get(forward, ()))
        return self._forward[forward]

    def _number(self, records: Sequence[Record]) -> int:
        contents: dict[str | None, int] = {None: -1}  # of nothing
        seen = tuple(
            (
                record.rank,
                record.microbatch,
                record.layout,
                record.shape,
                record.recompute,
                record.batch_dim,
                record.origin,
                contents.setdefault(
                    None if record.location is None else record.location.xxh3, len(contents)
                ),
            )
            for record in records
        )
        return self._numbers.setdefault(seen, len(self._numbers))


@dataclass(frozen=True, slots=True)
class Plan:
    """A logical tensor by the numbers of its records."""

    tensor: LogicalTensor
    pieces: tuple[tuple[Piece, tuple[int, ...]], ...]
    replicas: tuple[tuple[Piece, tuple[int, ...]], ...]

    @classmethod
    def of(cls, tensor: LogicalTensor, records: Sequence[Record]) -> Plan | None:
        """None where other records than these are part of it."""
        numbers = {id(record): number for number, record in enumerate(records)}
        pieces, replicas = (_numbered(side, numbers) for side in (tensor.pieces, tensor.replicas))
        return None if pieces is None or replicas is None else cls(tensor, pieces, replicas)

    def with_records(self, records: Sequence[Record]) -> LogicalTensor:
        pieces, replicas = (
            tuple(
                Piece(
                    layout=piece.layout,
                    records=tuple(records[number] for number in numbers),
                    factor=piece.factor,
                )
                for piece, numbers in side
            )
            for side in (self.pieces, self.replicas)
        )
        return LogicalTensor(
            shape=self.tensor.shape,
            pieces=pieces,
            replicas=replicas,
            gaps=self.tensor.gaps,
            notes=self.tensor.notes,
            absent=self.tensor.absent,
        )


def _numbered(
    pieces: Sequence[Piece], numbers: Mapping[int, int]
) -> tuple[tuple[Piece, tuple[int, ...]], ...] | None:
    if any(id(record) not in numbers for piece in pieces for record in piece.records):
        return None
    return tuple((piece, tuple(numbers[id(r)] for r in piece.records)) for piece in pieces)
