"""What waits for the end of a step: in one piece, each record where it is, equal bytes once."""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors import safe_open

from tests.support.late_values import Late
from tests.support.outboxes import Traced, record_of
from ttrace.capture.items import Repeat
from ttrace.core.record import Record
from ttrace.trace.segment import SegmentWriter


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


def again(first: Any, met: Record) -> Repeat:
    return Repeat(first, lambda known: replace(met, same_as=known.id, location=known.location))


def test_a_step_is_one_piece_in_which_every_record_finds_its_bytes(
    traced: Traced, tmp_path: Path
) -> None:
    tensors = [torch.arange(size, dtype=torch.float32) + size for size in (1, 3, 0, 100, 7)]
    for number, tensor in enumerate(tensors):
        traced.put(number, tensor, payload=Late())
    assert traced.box.flush() == []
    traced.close()
    assert all(map(torch.equal, traced.values(), tensors))
    with safe_open(tmp_path / "rank-00000" / "seg-00000.safetensors", "pt") as file:
        assert list(file.keys()) == ["page"]


@pytest.mark.parametrize("change", [0, 1])
def test_bytes_that_are_met_again_are_there_once(traced: Traced, change: int) -> None:
    tensor = torch.arange(50)
    first = traced.put(0, tensor, payload=Late())
    tensor.data[-1] += change
    met = record_of(1, tensor)
    second: Any = traced.box.put(met, tensor, Late(), again(first, met))
    assert traced.box.flush() == []
    traced.close()
    assert (first.record.location == second.record.location) != bool(change)
    assert (second.record.same_as == first.record.id) != bool(change)
    assert torch.equal(traced.values()[1], tensor)


def test_bytes_that_were_written_in_an_earlier_flush_are_known(traced: Traced) -> None:
    tensor = torch.arange(50)
    first = traced.put(0, tensor, payload=Late())
    traced.box.flush()
    met = record_of(1, tensor)
    second: Any = traced.box.put(met, tensor, Late(), again(first, met))
    assert traced.box.flush() == []
    assert second.record.location == first.record.location


def test_another_term_of_a_sum_shares_bytes_but_is_no_repetition(traced: Traced) -> None:
    tensor = torch.arange(50)
    first = traced.put(0, tensor, payload=Late())
    second: Any = traced.box.put(
        record_of(1, tensor), tensor, Late(), Repeat(first, lambda _: None)
    )
    assert traced.box.flush() == []
    assert second.record.location == first.record.location
    assert second.record.same_as is None


def test_one_that_cannot_be_computed_is_lost_alone(traced: Traced) -> None:
    for number in range(3):
        fault = ValueError("planted") if number == 1 else None
        traced.put(number, torch.ones(4), payload=Late(fault))
    (lost,) = traced.box.flush()
    assert lost.where == str(record_of(1, torch.ones(4)).id)
    traced.close()
    assert [record.sequence for record in traced.records()] == [0, 2]


def test_a_record_that_cannot_be_said_is_lost_alone(traced: Traced) -> None:
    for number in range(3):
        traced.put(number, torch.ones(4), payload=Late())
    odd = replace(record_of(3, torch.ones(4)), batch_dim=float("nan"))  # type: ignore[arg-type]
    traced.box.put(odd, torch.ones(4), Late())
    (lost,) = traced.box.flush()
    assert lost.where == str(odd.id)
    traced.close()
    assert [record.sequence for record in traced.records()] == [0, 1, 2]


@pytest.mark.parametrize("call", ["reserve", "keep"])
def test_a_full_disk_is_told_once_and_nothing_follows(
    call: str, traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(*_: Any, **__: Any) -> Callable[..., Any]:
        raise OSError(errno.ENOSPC, "planted")

    sent = [traced.put(number, torch.ones(4), payload=Late()) for number in range(3)]
    monkeypatch.setattr(SegmentWriter, call, fails)
    (lost,) = traced.box.flush()
    assert isinstance(lost.error, OSError)
    assert lost.where == str(record_of(0, torch.ones(4)).id)
    assert [each.record for each in sent] == [None, None, None]
