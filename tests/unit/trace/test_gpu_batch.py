"""Tables reach a device as they are, through memory that nobody still reads when it is filled."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from ttrace.trace import gpu
from ttrace.trace.gpu import Tables

HALF = 256


class Stream:
    """Keeps its events, in the order of the calls."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.events: list[Event] = []

    def record_event(self) -> Event:
        self.events.append(Event(self._memory))
        return self.events[-1]


class Event:
    """`found`: what memory had when somebody waited for it."""

    def __init__(self, memory: Memory) -> None:
        self._memory = memory
        self.found: torch.Tensor | None = None

    def synchronize(self) -> None:
        assert self.found is None
        self.found = self._memory.taken[0].clone()


class Memory:
    """Plain memory instead of pinned one."""

    def __init__(self) -> None:
        self.taken: list[torch.Tensor] = []

    def __call__(self, size_bytes: int) -> torch.Tensor:
        self.taken.append(torch.zeros(size_bytes, dtype=torch.uint8))
        return self.taken[-1]


@pytest.fixture
def memory(monkeypatch: pytest.MonkeyPatch) -> Memory:
    made = Memory()
    monkeypatch.setattr(gpu, "_pinned", made)
    monkeypatch.setattr(gpu, "_HALF_BYTES", HALF)
    return made


@pytest.fixture
def stream(memory: Memory, monkeypatch: pytest.MonkeyPatch) -> Stream:
    made = Stream(memory)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: made)
    return made


@pytest.fixture
def tables(memory: Memory, stream: Stream) -> Tables:
    return Tables(torch.device("cpu"))


def numbers(count: int, first: int = 0, dtype: Any = np.int64) -> np.ndarray[Any, Any]:
    return np.arange(first, first + count).astype(dtype)


@pytest.mark.parametrize("dtype", [np.int64, np.int32, np.uint8, np.float32, np.float64])
def test_tables_arrive_as_they_were_sent(tables: Tables, dtype: Any) -> None:
    sent = [numbers(5, dtype=dtype), numbers(3, 9, np.int64), numbers(0), numbers(1, 7, np.int32)]
    arrived = tables.send(sent)
    for table, found in zip(sent, arrived, strict=True):
        assert found.numpy().dtype == table.dtype
        assert np.array_equal(found.numpy(), table)


def test_a_table_of_several_columns_arrives_row_by_row(tables: Tables) -> None:
    rows = np.stack([numbers(3), numbers(3, 10)], axis=1)
    turned = np.stack([numbers(2), numbers(2, 5)]).T  # not in one piece
    arrived = tables.send([rows, turned])
    assert [found.tolist() for found in arrived] == [rows.ravel().tolist(), [0, 5, 1, 6]]


def test_each_begins_at_a_multiple_of_16_bytes(tables: Tables) -> None:
    arrived = tables.send([numbers(count, dtype=np.uint8) for count in (1, 16, 17, 0, 3)])
    offsets = [found.storage_offset() * found.element_size() for found in arrived]
    assert offsets == [0, 16, 32, 64, 64]


def test_what_was_sent_stays_when_its_memory_is_used_again(tables: Tables, memory: Memory) -> None:
    arrived = [tables.send([numbers(8, first)])[0] for first in range(100)]
    assert [found.tolist() for found in arrived] == [[*range(n, n + 8)] for n in range(100)]
    assert len(memory.taken) == 1
    assert memory.taken[0].nbytes == 2 * HALF


def test_memory_is_used_again_only_after_its_event_came(tables: Tables, stream: Stream) -> None:
    fits = HALF // 64  # tables of 64 bytes in one half
    for count in range(1, 6 * fits + 1):
        tables.send([numbers(8)])
        turns = (count - 1) // fits  # from one half to the other
        assert len(stream.events) == turns
        came = [event.found is not None for event in stream.events]
        # The half that is filled was left two turns ago, the other one just now.
        assert came == [True] * max(0, turns - 1) + [False] * min(1, turns)


def test_waiting_comes_before_bytes_are_overwritten(
    tables: Tables, memory: Memory, stream: Stream
) -> None:
    fits = HALF // 64
    tables.send([numbers(8, 1)])
    before = memory.taken[0][:64].clone()
    for _ in range(2 * fits - 1):
        tables.send([numbers(8, 2)])
    assert torch.equal(memory.taken[0][:64], before)
    tables.send([numbers(8, 3)])
    assert not torch.equal(memory.taken[0][:64], before)  # it is the same memory
    left = stream.events[0].found
    assert left is not None
    assert torch.equal(left[:64], before)


def test_tables_of_odd_sizes_share_no_bytes(tables: Tables, memory: Memory) -> None:
    for first, count in ((1, 3), (101, 5), (201, 7)):
        tables.send([numbers(count, first, np.uint8)])
    found = memory.taken[0]
    assert [found[at].item() for at in (0, 2, 16, 20, 32, 38)] == [1, 3, 101, 105, 201, 207]


@pytest.mark.parametrize("extra", [0, 1])
def test_tables_larger_than_a_half_get_memory_of_their_own(
    tables: Tables, memory: Memory, stream: Stream, extra: int
) -> None:
    large = numbers(HALF + extra, dtype=np.uint8)
    for _ in range(3):
        (arrived,) = tables.send([large])
        assert np.array_equal(arrived.numpy(), large)
    (small,) = tables.send([numbers(2)])
    assert small.tolist() == [0, 1]
    sizes = [taken.nbytes for taken in memory.taken]
    # Rounded to what a table begins at.
    assert sizes == ([HALF + 16] * 3 + [2 * HALF] if extra else [2 * HALF])
    assert len(stream.events) == (0 if extra else 3)


def test_nothing_at_all_can_be_sent(tables: Tables) -> None:
    assert tables.send([]) == []
