"""A line that is put together of known texts is exactly the one that JSON would have made."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout, Run
from ttrace.core.record import Location, PayloadRef, Record
from ttrace.trace.journal import LineForm, encoded, line_of

ODD = [
    'a"b',
    "\\",
    "a#1",
    "a:b~c",
    "tab\tnewline\n",
    "\x00\x1f\x7f",
    "step7/a",
    "ä✓𝄞",
    "\udc80",
    "}",
]
NAMES = st.sampled_from(["", "layers.0.wq", *ODD]) | st.text(max_size=8)
SIZES = st.integers(0, 1 << 40)
SHAPES = st.lists(st.integers(0, 1 << 20), max_size=4).map(tuple)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3),
    max_leaves=4,
)


def in_order(parameters: dict[str, Any]) -> dict[str, Any]:
    """A payload says what it must know in one order: equal references share one text."""
    return dict(sorted(parameters.items()))


IDS = st.builds(
    TensorId,
    step=st.integers(0, 10**6),
    module=NAMES,
    kind=st.sampled_from(Kind),
    slot=NAMES,
    call=st.integers(0, 3),
    apart=st.booleans(),
    turn=st.integers(0, 2),
    asked=st.booleans(),
)
LOCATIONS = st.builds(
    Location,
    segment=st.integers(0, 10**9 - 1).map(lambda number: f"seg-{number:05d}.safetensors"),
    offset=SIZES,
    size_bytes=SIZES,
    xxh3=st.integers(0, (1 << 64) - 1).map(lambda digest: f"{digest:016x}"),
)
PAYLOADS = st.builds(
    PayloadRef,
    name=NAMES,
    parameters=st.dictionaries(NAMES, JSON, max_size=3).map(in_order),
)


@st.composite
def layouts(draw: st.DrawFn) -> Layout:
    shape = draw(SHAPES)
    runs = []
    for size in shape:
        cuts = sorted(draw(st.lists(st.integers(0, size), max_size=3)))
        pieces = [Run(a, b - a) for a, b in itertools.pairwise(cuts)]
        runs.append((*pieces, *draw(st.sampled_from([(), (Run(None, 3),)]))))
    return Layout(shape=shape, runs=tuple(runs), partial=tuple(draw(st.lists(NAMES, max_size=2))))


RECORDS = st.builds(
    Record,
    id=IDS,
    rank=st.integers(0, 100),
    sequence=SIZES,
    dtype=st.sampled_from(["float32", "bfloat16"]) | NAMES,
    shape=SHAPES,
    microbatch=st.integers(0, 1000),
    recompute=st.booleans(),
    layout=st.none() | layouts(),
    batch_dim=st.none() | st.integers(-1, 4),
    origin=st.none() | st.integers(0, 100),
    same_as=st.none() | IDS,
    location=st.none() | LOCATIONS,
    payload=st.none() | PAYLOADS,
)


def as_json(record: Record) -> dict[str, Any]:
    """What a line says, spelled a second time."""
    at, payload = record.location, record.payload
    said: dict[str, Any] = {
        "recompute": True if record.recompute else None,
        "layout": None if record.layout is None else record.layout.to_json(),
        "batch_dim": record.batch_dim,
        "origin": record.origin,
        "same_as": None if record.same_as is None else str(record.same_as),
        "at": None if at is None else [at.segment, at.offset, at.size_bytes, at.xxh3],
        "payload": None if payload is None else [payload.name, dict(payload.parameters)],
    }
    return {
        "id": str(record.id),
        "seq": record.sequence,
        "dtype": record.dtype,
        "shape": list(record.shape),
        "mb": record.microbatch,
        **{key: value for key, value in said.items() if value is not None},
    }


@given(record=RECORDS)
def test_a_line_is_what_json_makes_of_its_record(record: Record) -> None:
    expected = encoded(as_json(record))
    assert line_of(record) == expected
    assert line_of(record) == expected  # of texts that are known by now


@given(record=RECORDS, step=st.integers(0, 10**6), sequence=SIZES, at=LOCATIONS)
def test_the_form_of_a_line_is_filled_as_the_record_would_be(
    record: Record, step: int, sequence: int, at: Location
) -> None:
    form = LineForm(record)
    there = replace(record, id=replace(record.id, step=step), sequence=sequence, location=at)
    assert form.text(step, sequence, at) == encoded(as_json(there))
    other = replace(there, sequence=sequence + 1)
    assert form.text(step, sequence + 1, at) == encoded(as_json(other))


PLAIN = Record(
    id=TensorId.parse("step3/a:output.0"),
    rank=0,
    sequence=1,
    dtype="float32",
    shape=(2, 3),
    location=Location(segment="seg-00000.safetensors", offset=0, size_bytes=24, xxh3="0" * 16),
)


@pytest.mark.parametrize(
    "changed",
    [
        replace(PLAIN, id=replace(PLAIN.id, step=4)),
        replace(PLAIN, sequence=2),
        replace(PLAIN, dtype="int32"),
        replace(PLAIN, shape=(3, 2)),
        replace(PLAIN, microbatch=1),
        replace(PLAIN, recompute=True),
        replace(PLAIN, layout=Layout.full((2, 3))),
        replace(PLAIN, batch_dim=0),
        replace(PLAIN, origin=0),
        replace(PLAIN, same_as=PLAIN.id),
        replace(PLAIN, location=None),
        replace(PLAIN, payload=PayloadRef(name="full")),
    ],
)
def test_every_fact_of_a_record_is_in_its_line(changed: Record) -> None:
    """Also of facts that are few and kept: none of them is left out of what they are kept by."""
    assert line_of(PLAIN) == encoded(as_json(PLAIN))
    assert line_of(changed) == encoded(as_json(changed)) != line_of(PLAIN)


def test_numbers_that_are_equal_but_written_otherwise_are_no_shared_text() -> None:
    said = [PayloadRef(name="p", parameters={"n": number}) for number in (1, 1.0, True)]
    lines = [line_of(replace(PLAIN, payload=payload)) for payload in said]
    assert [line[line.index("{", 1) :] for line in lines] == [
        '{"n":1}]}',
        '{"n":1.0}]}',
        '{"n":true}]}',
    ]


def test_equal_parameters_in_another_order_read_back_as_the_same_record() -> None:
    for names in ("xy", "yx"):
        payload = PayloadRef(name="p", parameters=dict.fromkeys(names, 1))
        record = replace(PLAIN, payload=payload)
        assert json.loads(line_of(record)) == as_json(record)


def test_what_cannot_be_said_in_json_is_no_line() -> None:
    odd = PayloadRef(name="p", parameters={"n": float("nan")})
    with pytest.raises(ValueError, match="JSON"):
        line_of(replace(PLAIN, payload=odd))
    with pytest.raises(ValueError, match="JSON"):
        LineForm(replace(PLAIN, payload=odd))
