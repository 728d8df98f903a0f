"""Forms: how pieces are put together, whatever their bytes are. All layers of a model share few.

Enters: pieces. Leaves: a value that is equal for pieces that differ in ids, ranks and bytes alone;
what depends on nothing else is found out once for all of them. `AlikePieces` have a form and their
own records, and are made into pieces when somebody looks at one.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, overload

import numpy as np

from ttrace.core.logical import LogicalTensor, Piece
from ttrace.core.quick import HashedOnce
from ttrace.core.record import Record
from ttrace.core.rows import IntArray, RecordRows

# Chosen: pairs of forms of a large model on many ranks; a step of one has about a hundred.
_KNOWN = 1 << 12


@dataclass(frozen=True, slots=True, kw_only=True)
class PiecesForm(HashedOnce):
    """What pieces have in common with an example of them."""

    facts: tuple[object, ...]
    example: tuple[Piece, ...] = field(compare=False, repr=False)
    starts: tuple[int, ...] = field(compare=False, repr=False)  # the first record of every piece

    __hash__ = HashedOnce.__hash__

    def _key(self) -> tuple[object, ...]:
        return self.facts

    @classmethod
    def of(cls, pieces: Iterable[Piece]) -> PiecesForm:
        example = tuple(pieces)
        facts = ((p.layout, p.factor, tuple(map(_facts, p.records))) for p in example)
        starts = itertools.accumulate((len(piece.records) for piece in example), initial=0)
        return cls(facts=tuple(facts), example=example, starts=tuple(starts)[:-1])


def _facts(record: Record) -> tuple[object, ...]:
    return (
        record.id.kind,
        record.dtype,
        record.shape,
        record.layout,
        record.batch_dim,
        record.origin is None,
        record.recompute,
        record.payload,
    )


class AlikePieces(Sequence[Piece]):
    """Pieces of a form; `records` are those of all of them, one after the other."""

    __slots__ = ("_made", "form", "records")

    def __init__(self, form: PiecesForm, records: RecordRows) -> None:
        self.form = form
        self.records = records
        self._made: tuple[Piece, ...] | None = None

    @classmethod
    def of(cls, pieces: Sequence[Piece]) -> AlikePieces:
        if isinstance(pieces, AlikePieces):
            return pieces
        records = [record for piece in pieces for record in piece.records]
        return cls(PiecesForm.of(pieces), RecordRows.of(records))

    def __len__(self) -> int:
        return len(self.form.example)

    @overload
    def __getitem__(self, index: int) -> Piece: ...
    @overload
    def __getitem__(self, index: slice) -> tuple[Piece, ...]: ...
    def __getitem__(self, index: int | slice) -> Piece | tuple[Piece, ...]:
        if isinstance(index, slice) or self._made is not None:
            return self._all()[index]
        return self._piece(range(len(self))[index])

    def __iter__(self) -> Iterator[Piece]:
        return iter(self._all())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and self._all() == tuple(other)

    def __hash__(self) -> int:
        return hash(self._all())

    def _all(self) -> tuple[Piece, ...]:
        if self._made is None:
            self._made = tuple(map(self._piece, range(len(self))))
        return self._made

    def _piece(self, number: int) -> Piece:
        like, start = self.form.example[number], self.form.starts[number]
        records = tuple(self.records[start : start + len(like.records)])
        return Piece(layout=like.layout, records=records, factor=like.factor)


def records_of(*tensors: LogicalTensor) -> Iterator[Record]:
    """All records that tensors are made of, and those of their replicas."""
    for pieces in (side for tensor in tensors for side in (tensor.pieces, tensor.replicas)):
        if isinstance(pieces, AlikePieces):
            yield from pieces.records
        else:
            yield from (record for piece in pieces for record in piece.records)


def made_at(pieces: Sequence[Piece]) -> int:
    """When a rank first made one of them: the execution order."""
    alike = AlikePieces.of(pieces)
    return int(alike.records.sequences[list(_first_records(alike.form))].min())


@functools.lru_cache(maxsize=_KNOWN)
def _first_records(form: PiecesForm) -> tuple[int, ...]:
    """Of every piece; zeros that nobody recorded count only where there is nothing else."""
    found = zip(form.starts, form.example, strict=True)
    return tuple(start for start, piece in found if piece.factor) or form.starts


def unlike(tensor: LogicalTensor) -> tuple[tuple[Piece, ...], ...]:
    """The replicas whose stored bytes are not those of what they repeat.

    Those with the same bytes at the same place are together: one of them stands for all.
    """
    if not tensor.replicas:
        return ()
    pieces, replicas = AlikePieces.of(tensor.pieces), AlikePieces.of(tensor.replicas)
    repeats = _repetitions(pieces.form, replicas.form)
    mine, other = replicas.records.take(repeats.record), pieces.records.take(repeats.repeated)
    same = (mine.digests == other.digests) & (mine.sizes == other.sizes) & (mine.sizes >= 0)
    is_alike = np.zeros(len(replicas), dtype=bool)
    is_alike[repeats.replica[same]] = True
    together: dict[object, list[Piece]] = {}
    for number in np.flatnonzero(~is_alike).tolist():
        piece = replicas[number]
        together.setdefault(_content(piece) or number, []).append(piece)
    return tuple(map(tuple, together.values()))


def _content(piece: Piece) -> object:
    """Equal for pieces that hold the same bytes at the same place; None where nothing tells."""
    place, at = _place(piece), piece.records[0].location
    return None if place is None or at is None else (place, at.size_bytes, at.xxh3)


class _Repetitions(NamedTuple):
    """Pairs of records that are equal if their bytes are: of a replica, and of a piece."""

    replica: IntArray  # by its number
    record: IntArray
    repeated: IntArray


@functools.lru_cache(maxsize=_KNOWN)
def _repetitions(pieces: PiecesForm, replicas: PiecesForm) -> _Repetitions:
    """None of a replica, or a piece, that is not a single record as it is stored."""
    places: dict[object, list[int]] = {}
    for at, piece in zip(pieces.starts, pieces.example, strict=True):
        places.setdefault(_place(piece), []).append(at)
    found = [
        (number, at, repeated)
        for number, (at, piece) in enumerate(zip(replicas.starts, replicas.example, strict=True))
        if (place := _place(piece)) is not None
        for repeated in places.get(place, ())
    ]
    return _Repetitions(*np.array(found, dtype=np.int64).reshape(-1, 3).T)


def _place(piece: Piece) -> object:
    """Where a piece sits, and how its bytes are read; None where it is more than one record."""
    if len(piece.records) > 1 or piece.factor != 1.0:
        return None
    record = piece.records[0]
    return piece.layout, record.dtype, record.payload
