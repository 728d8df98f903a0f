"""What a device made of a tensor that nothing wrote into since is taken again, not made again."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fake_arena import FakeArenaDevice, take_for_gpu
from tests.support.late_values import Late
from tests.support.outboxes import Traced, record_of
from ttrace.capture import outbox
from ttrace.capture.items import SMALL_BYTES, Repeat, Sent
from ttrace.core.layout import Layout
from ttrace.core.record import PayloadRef, Record
from ttrace.trace.fingerprint import FingerprintPayload
from ttrace.trace.payload import FULL, tensor_bytes

LARGE = SMALL_BYTES  # elements: too large for a slot, its bytes are written on the way
SUMS = 16  # of a fingerprint: few, so that small tensors have one


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> FakeArenaDevice:
    made = FakeArenaDevice()
    take_for_gpu(monkeypatch, made)
    return made


@pytest.fixture(params=[0, 1 << 30], ids=["threads", "hooks"])
def traced(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Traced:
    monkeypatch.setattr(outbox, "_HANDED_BYTES", request.param)
    monkeypatch.setattr(outbox, "_WRITERS", 3)
    return Traced(tmp_path)


def again(met: Record, first: Sent, *, is_unchanged: bool = True) -> Repeat:
    def record(known: Record) -> Record:
        shared = known.same_as or known.id
        return replace(met, same_as=shared, location=known.location, payload=known.payload)

    return Repeat(first, record, is_unchanged)


def put_again(traced: Traced, number: int, tensor: torch.Tensor, first: Sent, **how: Any) -> Sent:
    met, payload = record_of(number, tensor), how.pop("payload", FULL)
    return traced.box.put(met, tensor, payload, again(met, first, **how))


@pytest.mark.usefixtures("device")
class TestOnTheWay:
    def test_a_fingerprint_is_made_once(
        self, traced: Traced, device: FakeArenaDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        made: list[torch.Tensor] = []
        monkeypatch.setattr(device, "fingerprint", lambda tensor, *_: made.append(tensor))
        tensor, prints = torch.ones(64, 64), FingerprintPayload(SUMS)
        first = traced.put(0, tensor, payload=prints)
        second = put_again(traced, 1, tensor, first, payload=prints)
        assert traced.box.flush() == []
        assert len(made) == 1
        assert second.record is not None
        assert first.record is not None
        assert second.record.payload == first.record.payload is not None
        assert second.record.location == first.record.location

    def test_whole_values_are_not_made_of_a_fingerprint(self, traced: Traced) -> None:
        tensor = torch.ones(64, 64)
        first = traced.put(0, tensor, payload=FingerprintPayload(SUMS))
        second = put_again(traced, 1, tensor, first, payload=FULL)
        assert traced.box.flush() == []
        assert second.record is not None
        assert second.record.payload is None
        assert second.record.same_as is None

    def test_what_a_device_cannot_give_is_lost_under_both_names(self, traced: Traced) -> None:
        tensor = torch.zeros(3)
        first = traced.put(0, tensor, payload=Late(ZeroDivisionError("planted")))
        put_again(traced, 1, tensor, first, payload=Late())
        traced.put(2, tensor)
        lost = traced.box.flush()
        assert [each.where for each in lost] == ["step0/m0:output.0", "step0/m1:output.0"]
        assert {str(each.error) for each in lost} == {"planted"}
        traced.close()
        assert [record.sequence for record in traced.records()] == [2]


MET = record_of(0, torch.ones(4, 2))
PRINTED = PayloadRef(name="fingerprint", parameters={"cells": [1, 1]})


class TestEncoded:
    def sent(self, record: Record | None, *, is_late: bool = True) -> Sent:
        made = Sent()
        made.encoded = record
        made.later = (lambda: tensor_bytes(torch.ones(4, 2))) if is_late else None
        return made

    @pytest.mark.parametrize("payload", [None, PRINTED])
    def test_it_is_what_was_made_before(self, payload: PayloadRef | None) -> None:
        before = self.sent(MET if payload is None else MET.stored_as(payload))
        met = replace(MET, sequence=7)
        stored = met if payload is None else met.stored_as(payload)
        assert again(met, before).encoded(met) == (stored, before.later)

    def test_nothing_is_known_of_what_may_have_changed(self) -> None:
        assert again(MET, self.sent(MET), is_unchanged=False).encoded(MET) is None

    def test_bytes_that_are_on_their_way_are_not_taken(self) -> None:
        assert again(MET, self.sent(MET, is_late=False)).encoded(MET) is None

    @pytest.mark.parametrize(
        "other",
        [
            replace(MET, shape=(2, 4)),
            replace(MET, dtype="int32"),
            replace(MET, layout=Layout.full((4, 2))),
            replace(MET, batch_dim=1),
            None,
        ],
    )
    def test_what_was_made_of_another_form_is_not_taken(self, other: Record | None) -> None:
        assert again(MET, self.sent(other)).encoded(MET) is None
