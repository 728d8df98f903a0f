"""Records in columns are the same records to whoever looks at them."""

from __future__ import annotations

import pickle
from dataclasses import replace

import pytest

from ttrace.core.ids import TensorId
from ttrace.core.record import Location, Record
from ttrace.core.rows import RecordRows, RecordTable, RowPlace


def record(
    rank: int, *, name: str = "a:output.0", digest: int = 0, size: int = 8, step: int = 0
) -> Record:
    return Record(
        id=TensorId.parse(f"step{step}/{name}"),
        rank=rank,
        sequence=step,
        dtype="float32",
        shape=(size // 4,),
        location=Location(
            segment=f"seg-{rank:05d}.safetensors",
            offset=64 * rank,
            size_bytes=size,
            xxh3=f"{digest:016x}",
        ),
    )


def nowhere(rank: int) -> Record:
    id_ = TensorId.parse("step0/a:grad_output.0")
    return replace(record(rank), id=id_, same_as=id_, location=None)


MANY = [record(0), record(1, digest=2**64 - 1), nowhere(1), record(2, name="b:output.0", step=3)]


def test_rows_are_their_records() -> None:
    rows = RecordRows.of(MANY)
    assert list(rows) == MANY
    assert rows == MANY
    assert rows[1:3] == MANY[1:3]
    assert [rows[number] for number in range(len(rows))] == MANY
    assert rows[-1] == MANY[-1]
    with pytest.raises(IndexError):
        rows[4]


def test_rows_of_a_table_share_what_is_the_same() -> None:
    table = RecordTable()
    example = table.add_example(record(0))
    segment = table.segment("seg-00001.safetensors")
    for rank in (0, 1):
        table.add(example, rank, RowPlace(segment, 64 * rank, 7))
    assert table.last() == record(1, digest=7)
    rows = table.rows()
    assert [found.rank for found in rows] == [0, 1]
    assert rows.examples() == [record(0)]


def test_another_process_gets_the_rows_it_was_sent_alone() -> None:
    rows = RecordRows.of([*MANY, *(record(rank, digest=rank) for rank in range(100))])
    few = rows[1:4]
    sent = pickle.dumps(few)
    assert pickle.loads(sent) == few  # noqa: S301
    assert len(sent) < len(pickle.dumps(rows)) / 5


def test_rows_by_id_keep_the_order_of_ids_and_of_rows() -> None:
    made = [
        record(0, name="b:output.0"),
        record(0, name="a:output.0"),
        record(1, name="a:output.0"),
        record(1, name="b:output.0"),
    ]
    found = RecordRows.of(made).by_id()
    assert [str(id_) for id_ in found] == ["step0/b:output.0", "step0/a:output.0"]
    assert [[each.rank for each in rows] for rows in found.values()] == [[0, 1], [0, 1]]
    assert RecordRows.of([]).by_id() == {}


def test_rows_with_bytes_and_of_some_steps() -> None:
    rows = RecordRows.of(MANY)
    assert rows.stored() == [MANY[0], MANY[1], MANY[3]]
    assert rows[:2].stored() == MANY[:2]
    assert rows.of_steps(frozenset({3})) == [MANY[3]]


def test_joined_rows_are_those_of_all_parts_in_their_order() -> None:
    rows = RecordRows.of(MANY)
    assert RecordRows.joined([rows[2:], rows[:2]]) == [*MANY[2:], *MANY[:2]]
    assert RecordRows.joined([rows[2:], MANY[:2]]) == [*MANY[2:], *MANY[:2]]


def likeness(*digests: int, size: int = 8, name: str = "b:output.0") -> bool:
    """Whether rows with these digests, on ranks 0, 1 and 2, are like three of which two agree."""
    first = [record(rank, digest=digest) for rank, digest in enumerate((5, 6, 5))]
    other = [
        record(rank, name=name, digest=digest, size=size) for rank, digest in enumerate(digests)
    ]
    rows = RecordRows.of([*first, *other])
    return rows[:3].likeness() == rows[3:].likeness()


def test_rows_are_alike_that_differ_in_names_and_bytes() -> None:
    assert likeness(9, 1, 9)
    assert likeness(0, 3, 0)


def test_rows_are_not_alike_where_other_ranks_agree_or_shapes_differ() -> None:
    assert not likeness(9, 9, 1)
    assert not likeness(9, 1, 2)
    assert not likeness(9, 1, 9, size=16)
