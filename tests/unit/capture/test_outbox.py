"""What hooks hand over comes into the trace in order, fixed, once; or it is said what did not."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import xxhash

from tests.support.int8_blocks import Int8Blocks
from tests.support.outboxes import Traced, record_of
from tests.support.threads import running_threads
from ttrace.capture import memory, outbox, writers
from ttrace.capture.items import Repeat
from ttrace.capture.memory import HostMemory, Portion, Stalled
from ttrace.capture.writers import Writers
from ttrace.core.record import PayloadRef, Record
from ttrace.trace.payload import FullPayload, tensor_bytes
from ttrace.trace.segment import Reserved
from ttrace.trace.writer import TraceWriter

RING = 1 << 16


@pytest.fixture(params=[0, 3000, 1 << 30], ids=["threads", "both", "hooks"])
def handed_bytes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    size: int = request.param
    monkeypatch.setattr(outbox, "_HANDED_BYTES", size)
    monkeypatch.setattr(outbox, "HOST_BYTES", RING)
    return size


@pytest.fixture
def by_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(outbox, "_HANDED_BYTES", 0)
    monkeypatch.setattr(outbox, "HOST_BYTES", RING)


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


@pytest.mark.usefixtures("handed_bytes")
@pytest.mark.parametrize("threads", [1, 4])
class TestPut:
    @pytest.fixture(autouse=True)
    def several(self, threads: int, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(outbox, "_WRITERS", threads)

    def test_values_are_fixed_and_in_order(self, traced: Traced) -> None:
        sizes = [0, 1, 1000, 3 * RING, 5, 70_000, 2] * 5
        tensors = [torch.full((size,), number) for number, size in enumerate(sizes)]
        for number, tensor in enumerate(tensors):
            traced.put(number, tensor)
            tensor.zero_()
        assert traced.box.flush() == []
        traced.close()
        assert [record.sequence for record in traced.records()] == list(range(len(sizes)))
        for number, (value, size) in enumerate(zip(traced.values(), sizes, strict=True)):
            assert torch.equal(value, torch.full((size,), number))

    @pytest.mark.parametrize("size", [3, 2 * RING])
    @pytest.mark.parametrize("is_changed", [False, True])
    def test_what_is_met_again_is_stored_once_if_it_is_the_same(
        self, size: int, is_changed: bool, traced: Traced
    ) -> None:
        tensor = torch.arange(size)
        first = traced.put(0, tensor)
        if is_changed:
            tensor.data[-1] += 1  # behind autograd's back
        met = record_of(1, tensor)
        again = Repeat(first, lambda known: replace(met, same_as=known.id, location=known.location))
        second = traced.box.put(met, tensor, repeat=again)
        traced.put(2, tensor)
        assert traced.box.flush() == []
        traced.close()
        assert second.record is not None
        assert (second.record.same_as == first.record.id) != is_changed
        assert (second.xxh3 == first.xxh3) != is_changed
        values = traced.values()
        assert torch.equal(values[1], tensor)
        assert torch.equal(values[2], tensor)
        assert (values[0][-1] != values[1][-1]) == is_changed

    def test_bytes_that_are_known_later_keep_their_place(self, traced: Traced) -> None:
        asked = []

        class Later(FullPayload):
            def encode(self, record: Record, tensor: torch.Tensor) -> Any:
                def data() -> memoryview:
                    asked.append(record.sequence)
                    return tensor_bytes(tensor)

                return record, data

        tensor = torch.ones(1000)
        for number in range(6):
            traced.put(number, tensor * number, **({"payload": Later()} if number % 2 else {}))
        assert asked == []
        traced.box.flush()
        assert asked == [1, 3, 5]
        traced.close()
        assert [record.sequence for record in traced.records()] == list(range(6))
        assert all(map(torch.equal, traced.values(), [tensor * number for number in range(6)]))

    def test_bytes_of_another_payload_are_fixed_as_well(self, traced: Traced) -> None:
        payload, tensor = Int8Blocks(), torch.linspace(0, 1, 4096)
        _, expected = payload.encode(record_of(0, tensor), tensor)
        sent = traced.put(0, tensor, payload=payload)
        tensor.zero_()
        traced.box.flush()
        assert isinstance(sent.record.payload, PayloadRef)
        assert sent.record.location.size_bytes == expected.nbytes


@pytest.mark.usefixtures("by_threads")
def test_what_is_met_again_is_hashed_beside_the_one_before(
    traced: Traced, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outbox, "_WRITERS", 2)
    is_hashed, write, digest = threading.Event(), Reserved.write, xxhash.xxh3_64_hexdigest
    waited: list[bool] = []

    def writes_later(reserved: Reserved, data: memoryview, **how: int) -> None:
        waited.append(is_hashed.wait(20))
        write(reserved, data, **how)

    def hashed(data: memoryview) -> str:
        is_hashed.set()
        return digest(data)

    monkeypatch.setattr(Reserved, "write", writes_later)
    monkeypatch.setattr(writers, "xxhash", SimpleNamespace(xxh3_64_hexdigest=hashed))
    tensor = torch.arange(100)
    met = record_of(1, tensor)
    first = traced.put(0, tensor)
    again = Repeat(first, lambda known: replace(met, same_as=known.id, location=known.location))
    second = traced.box.put(met, tensor, repeat=again)
    assert traced.box.flush() == []
    assert waited == [True]
    assert second.record is not None
    assert second.record.same_as == first.record.id


@pytest.mark.usefixtures("by_threads")
class TestRoom:
    def test_a_hook_waits_for_room_and_says_how_long(
        self, traced: Traced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        write = Reserved.write

        def slowly(self: Reserved, data: memoryview) -> None:
            time.sleep(0.005)
            write(self, data)

        monkeypatch.setattr(Reserved, "write", slowly)
        for number in range(20):
            traced.put(number, torch.full((RING // 16,), number))  # half of the ring
        before = traced.box.waited_seconds
        traced.box.flush()
        assert 0.03 < before < traced.box.waited_seconds
        traced.close()
        assert all(value[0] == number for number, value in enumerate(traced.values()))

    def test_nobody_waits_for_threads_that_are_gone(self) -> None:
        host = HostMemory(128, lambda: False)
        host.take(128)
        with pytest.raises(Stalled):
            host.take(64)

    def test_what_cannot_be_copied_leaves_nothing_behind(
        self, traced: Traced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError("planted")

        with monkeypatch.context() as patched:
            patched.setattr(memory, "copy_into", fail)
            for number in range(10):
                with pytest.raises(ZeroDivisionError):
                    traced.put(number, torch.ones(RING // 8))
        traced.put(10, torch.ones(2 * RING))
        assert traced.box.flush() == []
        assert [record.sequence for record in traced.records()] == [10]

    def test_what_breaks_off_in_the_middle_is_not_recorded(
        self, traced: Traced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        copy, left = memory.copy_into, [True] * 3

        def fail(*args: Any) -> None:
            if not left:
                raise KeyboardInterrupt
            left.pop()
            copy(*args)

        with monkeypatch.context() as patched:
            patched.setattr(memory, "copy_into", fail)
            with pytest.raises(KeyboardInterrupt):
                traced.put(0, torch.ones(2 * RING))
        traced.put(1, torch.ones(2 * RING))
        assert traced.box.flush() == []
        assert [record.sequence for record in traced.records()] == [1]


FAULTS: list[tuple[Any, str]] = [
    (Writers, "_settle"),
    (Writers, "_end_lines"),
    (Portion, "free"),
    (HostMemory, "free"),
]


@pytest.mark.usefixtures("by_threads")
class TestFaults:
    @pytest.mark.parametrize("size", [1, 8, 64])
    @pytest.mark.parametrize("place", FAULTS, ids=lambda place: place[1])
    def test_a_thread_that_fails_hangs_nobody(
        self, place: tuple[Any, str], size: int, traced: Traced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(*_: Any) -> None:
            raise ZeroDivisionError("planted")

        sent = []
        with monkeypatch.context() as patch:
            patch.setattr(*place, fail)
            for number in range(100):
                with suppress(Stalled, ZeroDivisionError):  # where there is no room, or no thread
                    sent.append(traced.put(number, torch.ones(RING // size)))
        assert traced.box.is_broken
        (lost, *_) = traced.box.flush()
        assert "planted" in str(lost.error)
        repeat = Repeat(sent[-1], lambda _: None) if sent else None
        for number in range(100, 110):
            traced.put(number, torch.ones(RING // size), repeat=repeat)
        assert traced.box.flush() == []
        assert [record.sequence for record in traced.records()][-10:] == [*range(100, 110)]
        assert running_threads() == 1

    def test_one_record_that_fails_is_named_and_the_others_are_there(
        self, traced: Traced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        keep = TraceWriter.keep

        def fail(self: TraceWriter, record: Record, reserved: Reserved) -> Record:
            if record.sequence == 2:
                raise ZeroDivisionError("planted")
            return keep(self, record, reserved)

        monkeypatch.setattr(TraceWriter, "keep", fail)
        for number in range(5):
            traced.put(number, torch.full((100,), number))
        (lost,) = traced.box.flush()
        assert lost.where == "step0/m2:output.0"
        traced.close()
        assert [int(value[0]) for value in traced.values()] == [0, 1, 3, 4]

    def test_after_a_full_disk_nothing_more_is_written(
        self, traced: Traced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        note, left = TraceWriter.note_lines, [True] * 3

        def fail(self: TraceWriter, *lines: str) -> None:
            if not left:
                raise OSError(28, "No space left on device")
            left.pop()
            note(self, *lines)

        monkeypatch.setattr(TraceWriter, "note_lines", fail)
        for number in range(50):
            traced.put(number, torch.ones(RING // 8))
        (lost,) = traced.box.flush()
        assert isinstance(lost.error, OSError)
        assert len(traced.records()) == 3

    def test_without_threads_hooks_write(
        self, traced: Traced, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def fail(_: object) -> None:
            raise RuntimeError("can't create new thread at interpreter shutdown")

        monkeypatch.setattr(threading.Thread, "start", fail)
        tensors = [torch.arange(3 * RING), torch.ones(3)]
        for number, tensor in enumerate(tensors):
            traced.put(number, tensor)
        assert traced.box.flush() == []
        traced.close()
        assert all(map(torch.equal, traced.values(), tensors))


@pytest.mark.usefixtures("by_threads")
class TestThreads:
    def test_they_end_with_the_step(self, traced: Traced) -> None:
        for step in range(3):
            traced.put(step, torch.ones(100))
            assert running_threads() == 2
            traced.box.flush()
            assert running_threads() == 1

    @pytest.mark.flow
    def test_a_child_that_is_forked_in_a_step_goes_its_own_way(self, traced: Traced) -> None:
        traced.put(0, torch.ones(100))
        child = os.fork()
        if child == 0:
            code = 1
            try:
                traced.box.flush()  # of the parent's threads it has none
                code = 0
            finally:
                os._exit(code)
        assert wait_for(child) == 0
        traced.box.flush()
        assert len(traced.records()) == 1


def wait_for(child: int, seconds: float = 30) -> int:
    """Its exit code; a child that hangs is a failure."""
    done: Callable[[], tuple[int, int]] = lambda: os.waitpid(child, os.WNOHANG)  # noqa: E731
    stop = time.monotonic() + seconds
    while (found := done())[0] == 0:
        if time.monotonic() > stop:
            os.kill(child, 9)
            os.waitpid(child, 0)
            pytest.fail("the child hangs")
        time.sleep(0.01)
    return os.waitstatus_to_exitcode(found[1])
