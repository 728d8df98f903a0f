"""The records of a sheet are said together, once it is known where their bytes are."""

from __future__ import annotations

import json

import pytest
import torch

from tests.support.fake_arena import FakeArenaDevice
from tests.support.outboxes import record_of
from ttrace.capture.items import Sent, Sheet, SheetItem, Written
from ttrace.core.record import Location
from ttrace.trace.arena import Arena
from ttrace.trace.fingerprint import FingerprintPayload
from ttrace.trace.journal import line_of

TENSORS = [torch.ones(3), torch.zeros(5)]
RECORDS = [record_of(number, tensor) for number, tensor in enumerate(TENSORS)]
PLACES = [
    Location(
        segment="seg-00000.safetensors", offset=16 * n, size_bytes=12 + 8 * n, xxh3=f"{n:016x}"
    )
    for n in range(2)
]


@pytest.fixture
def item() -> SheetItem:
    sheet = Sheet(RECORDS, FingerprintPayload())
    return SheetItem(sheet, Arena(FakeArenaDevice()).batch(TENSORS, sheet.batch), 7, 10)


def test_nothing_is_said_before_the_bytes_are_in_the_trace(item: SheetItem) -> None:
    assert (item.lines(), item.checksums()) == ((), {})


def test_each_record_has_its_step_its_turn_and_its_place(item: SheetItem) -> None:
    item.put_at(PLACES)
    said = [json.loads(line) for line in item.lines()]
    assert [line["id"] for line in said] == ["step7/m0:output.0", "step7/m1:output.0"]
    assert [line["seq"] for line in said] == [10, 11]
    assert [line["at"][1:3] for line in said] == [[0, 12], [16, 20]]
    assert [line["shape"] for line in said] == [[3], [5]]
    assert item.checksums() == {("m0", "0"): PLACES[0].xxh3, ("m1", "0"): PLACES[1].xxh3}


def test_nothing_is_said_of_what_was_lost(item: SheetItem) -> None:
    item.put_at(PLACES)
    assert item.lines()
    item.error = ZeroDivisionError("planted")
    assert item.lines() == ()


def test_it_is_named_by_how_many_it_is_of(item: SheetItem) -> None:
    assert item.name == "2 tensors, output of each parameter"


def test_it_is_waited_for_until_the_step_is_over(item: SheetItem) -> None:
    assert item.sent.is_late
    assert item.later is not None
    parts = item.sheet.parts(item.later())
    assert [bytes(part) for part in parts] == [tensor.numpy().tobytes() for tensor in TENSORS]


def test_what_is_written_has_a_checksum_of_each_and_none_of_what_was_lost(item: SheetItem) -> None:
    written, alone, lost = Written(), Sent(), Sent()
    alone.record = RECORDS[0].at(PLACES[1])
    written.alone = {("a", "weight"): alone, ("b", "weight"): lost}
    written.sheets.append(item)
    found = {("a", "weight"): PLACES[1].xxh3, ("b", "weight"): None}
    assert written.checksums() == found
    item.put_at(PLACES)
    assert written.checksums() == found | item.checksums()


def test_an_item_says_the_line_of_its_record(item: SheetItem) -> None:
    """The companion of a sheet: one record, one line."""
    sent = Sent()
    assert sent.xxh3 is None
    sent.record = RECORDS[0].at(PLACES[0])
    assert sent.xxh3 == PLACES[0].xxh3
    item.put_at(PLACES)
    assert json.loads(item.lines()[0]) == json.loads(line_of(sent.record)) | {
        "id": "step7/m0:output.0",
        "seq": 10,
    }
