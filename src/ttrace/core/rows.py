"""Rows: the records of a trace in columns, since thousands of ranks write millions of them.

Ranks that hold the same part of a tensor say the same of it, but for their number and the place of
its bytes. What is the same is one example; a row has the number of its example, and what differs. A
row becomes a record when somebody looks at it; what is asked of all rows at once is asked of their
columns.
"""

from __future__ import annotations

import itertools
import operator
from array import array
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, Self, overload

import numpy as np
import numpy.typing as npt

from ttrace.core.ids import TensorId
from ttrace.core.record import Location, Record

IntArray = npt.NDArray[np.integer[Any]]
_NOWHERE = -1  # the segment of a record without bytes


class RowPlace(NamedTuple):
    """Where the bytes of a row are; how many they are, its example knows."""

    segment: int
    offset: int
    digest: int


_tables = itertools.count()


class RecordTable:
    """Grows by a row for each record, until somebody looks at a column."""

    def __init__(self) -> None:
        self.number = next(_tables)
        self.examples: list[Record] = []
        self.segments: list[str] = []
        self._numbers: dict[str, int] = {}  # of segments
        self._example = array("i")
        self._rank = array("i")
        self._segment = array("i")
        self._offset = array("q")
        self._digest = array("Q")
        self._columns: Columns | None = None

    def __len__(self) -> int:
        return len(self._rank)

    def add_example(self, record: Record) -> int:
        """The number of an example: the rank of the record, and where its bytes are, is no part."""
        self.examples.append(record)
        return len(self.examples) - 1

    def segment(self, name: str) -> int:
        """The number of a segment."""
        if name not in self._numbers:
            self._numbers[name] = len(self.segments)
            self.segments.append(name)
        return self._numbers[name]

    def add(self, example: int, rank: int, place: RowPlace | None) -> None:
        """One more row."""
        segment, offset, digest = place or (_NOWHERE, 0, 0)
        self._example.append(example)
        self._rank.append(rank)
        self._segment.append(segment)
        self._offset.append(offset)
        self._digest.append(digest)

    def append(self, record: Record) -> None:
        """One more row, by a record that nothing else is like."""
        self.add(self.add_example(record), record.rank, self.place_of(record))

    def place_of(self, record: Record) -> RowPlace | None:
        at = record.location
        if at is None:
            return None
        return RowPlace(self.segment(at.segment), at.offset, int(at.xxh3, 16))

    def last(self) -> Record:
        """The row that was added last; it may still grow."""
        columns = self._example, self._rank, self._segment, self._offset, self._digest
        return self.record(*(column[-1] for column in columns))

    def rows(self, start: int = 0) -> RecordRows:
        """All rows from one on."""
        return RecordRows(self, np.arange(start, len(self), dtype=np.int32))

    @property
    def columns(self) -> Columns:
        if self._columns is None:
            self._columns = Columns.of(
                self.examples,
                np.frombuffer(self._example, np.intc),
                np.frombuffer(self._rank, np.intc),
                np.frombuffer(self._segment, np.intc),
                np.frombuffer(self._offset, np.int64),
                np.frombuffer(self._digest, np.uint64),
            )
        return self._columns

    def record(self, example: int, rank: int, segment: int, offset: int, digest: int) -> Record:
        like = self.examples[example]
        if segment == _NOWHERE or like.location is None:
            return like.of_rank(rank, None)
        location = Location(
            segment=self.segments[segment],
            offset=offset,
            size_bytes=like.location.size_bytes,
            xxh3=format(digest, "016x"),
        )
        return like.of_rank(rank, location)


class Columns(NamedTuple):
    """What tells rows apart, and of every example what it is compared by."""

    example: IntArray
    rank: IntArray
    segment: IntArray
    offset: IntArray
    digest: IntArray
    forms: IntArray  # equal for examples that say the same but for their names
    sizes: IntArray  # in bytes
    sequences: IntArray
    ids: IntArray  # in the order in which they first come

    @classmethod
    def of(cls, examples: Sequence[Record], *columns: IntArray) -> Columns:
        forms: dict[object, int] = {}
        ids: dict[TensorId, int] = {}
        example, rank, segment, offset, digest = columns
        return cls(
            *(example, rank, segment, offset, digest),
            forms=_numbered(forms.setdefault(_form(e), len(forms)) for e in examples),
            sizes=_numbered(e.location.size_bytes if e.location else -1 for e in examples),
            sequences=_numbered(e.sequence for e in examples),
            ids=_numbered(ids.setdefault(e.id, len(ids)) for e in examples),
        )


def _numbered(values: Iterable[int]) -> IntArray:
    return np.fromiter(values, np.int64)


_SAID = operator.attrgetter(
    *("microbatch", "layout", "shape", "recompute", "batch_dim", "origin", "dtype", "payload")
)


def _form(record: Record) -> object:
    return _SAID(record), record.location is None


class RecordRows(Sequence[Record]):
    """Some rows of a table, as a sequence of records."""

    __slots__ = ("numbers", "table")

    def __init__(self, table: RecordTable, numbers: IntArray) -> None:
        self.table = table
        self.numbers = numbers

    @classmethod
    def of(cls, records: Sequence[Record]) -> RecordRows:
        """Records as rows, if they are none yet."""
        if isinstance(records, RecordRows):
            return records
        table = RecordTable()
        for record in records:
            table.append(record)
        return table.rows()

    @classmethod
    def joined(cls, parts: Sequence[Sequence[Record]]) -> RecordRows:
        """All of them, one after the other."""
        rows = [part for part in parts if isinstance(part, RecordRows)]
        if len(rows) < len(parts) or len({id(part.table) for part in rows}) != 1:
            return cls.of([record for part in parts for record in part])
        return cls(rows[0].table, np.concatenate([part.numbers for part in rows]))

    def __len__(self) -> int:
        return len(self.numbers)

    @overload
    def __getitem__(self, index: int) -> Record: ...
    @overload
    def __getitem__(self, index: slice) -> Self: ...
    def __getitem__(self, index: int | slice) -> Record | Self:
        if isinstance(index, slice):
            return type(self)(self.table, self.numbers[index])
        number = int(self.numbers[index])
        columns = self.table.columns
        return self.table.record(*(int(column[number]) for column in columns[:5]))

    def __iter__(self) -> Iterator[Record]:
        columns = self.table.columns[:5]
        return map(self.table.record, *(column[self.numbers].tolist() for column in columns))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sequence) and list(self) == list(other)

    def __hash__(self) -> int:
        return hash(tuple(self))

    def __reduce__(self) -> tuple[Any, ...]:
        """Without the rows that nobody asked for: it may be sent to another process."""
        examples, example = np.unique(self._column("example"), return_inverse=True)
        segments, segment = np.unique(self._column("segment"), return_inverse=True)
        names = self.table.segments
        return _rows, (
            [self.table.examples[number] for number in examples],
            [names[number] if number != _NOWHERE else None for number in segments],
            example,
            segment,
            *(self._column(name) for name in ("rank", "offset", "digest")),
        )

    def take(self, numbers: IntArray) -> RecordRows:
        """Those at these places."""
        return RecordRows(self.table, self.numbers[numbers])

    def where(self, mask: npt.NDArray[np.bool_]) -> RecordRows:
        """The same object where all are taken."""
        return self if mask.all() else RecordRows(self.table, self.numbers[mask])

    def stored(self) -> RecordRows:
        """Those with bytes."""
        return self.where(self._column("segment") != _NOWHERE)

    def of_steps(self, steps: frozenset[int]) -> RecordRows:
        known = np.array([e.id.step in steps for e in self.table.examples], dtype=bool)
        return self.where(known[self._column("example")])

    def examples(self) -> list[Record]:
        """One for all that say the same, whatever its rank and its bytes are."""
        return [self.table.examples[number] for number in np.unique(self._column("example"))]

    def by_id(self) -> dict[TensorId, RecordRows]:
        """The rows of every id in their order; ids in that of their first rows in the table."""
        ids = self.table.columns.ids[self._column("example")]
        order = np.argsort(ids, kind="stable")
        starts = np.flatnonzero(np.diff(ids[order], prepend=-1))
        parts = np.split(self.numbers[order], starts[1:]) if len(starts) else []
        found = (RecordRows(self.table, part) for part in parts)
        return {rows[0].id: rows for rows in found}

    def likeness(self) -> object:
        """Equal for rows of one table that differ in names and bytes only.

        Their ranks are the same, in the same order, and so is which of them have equal bytes.
        """
        digests = self.digests
        _, first, same = np.unique(digests, return_index=True, return_inverse=True)
        forms = self.table.columns.forms[self._column("example")]
        columns = forms, self._column("rank"), first[same].ravel()
        return self.table.number, *(column.tobytes() for column in columns)

    @property
    def digests(self) -> IntArray:
        """Of the bytes; of those that have none, any number."""
        return self._column("digest")

    @property
    def sizes(self) -> IntArray:
        """In bytes; -1 of those that have none."""
        return self.table.columns.sizes[self._column("example")]

    @property
    def sequences(self) -> IntArray:
        return self.table.columns.sequences[self._column("example")]

    def _column(self, name: str) -> IntArray:
        column: IntArray = getattr(self.table.columns, name)
        return column[self.numbers]


def _rows(
    examples: Sequence[Record],
    names: Sequence[str | None],
    example: IntArray,
    segment: IntArray,
    *columns: IntArray,
) -> RecordRows:
    table = RecordTable()
    table.examples += examples
    segments = [_NOWHERE if name is None else table.segment(name) for name in names]
    for like, at, rank, offset, digest in zip(
        example.ravel().tolist(),
        segment.ravel().tolist(),
        *(column.tolist() for column in columns),
        strict=True,
    ):
        place = None if segments[at] == _NOWHERE else RowPlace(segments[at], offset, digest)
        table.add(like, rank, place)
    return table.rows()
