"""What a device still computes when a step ends is written while the next one runs, in order."""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

from tests.support.fake_arena import FakeArenaDevice, take_for_gpu
from tests.support.late_values import Late
from tests.support.outboxes import Traced, record_of
from tests.support.threads import running_threads
from ttrace.capture import outbox, writers
from ttrace.capture.items import Item, Unwritten
from ttrace.capture.writers import Behind, Pauses, Writers
from ttrace.core.record import RankInfo
from ttrace.trace import journal
from ttrace.trace.segment import SegmentWriter
from ttrace.trace.writer import TraceWriter

QUICK_S = 25  # chosen: much more than anything here takes, much less than a hang


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeArenaDevice]:
    made = FakeArenaDevice()
    take_for_gpu(monkeypatch, made)
    yield made
    made.may_go_on.set()  # no thread of a failed test stays


@pytest.fixture
def traced(tmp_path: Path) -> Traced:
    return Traced(tmp_path)


class Steps:
    """Ends steps of a trace as a recorder does, and keeps what it was told."""

    def __init__(self, traced: Traced) -> None:
        self.box, self._writer = traced.box, traced.writer
        self.lost: list[bool] = []
        self.told: list[Unwritten] = []
        self.threads: list[threading.Thread] = []

    def end(self, number: int) -> None:
        def then(lost: bool) -> None:  # as an outbox calls it
            self.lost.append(lost)
            self.threads.append(threading.current_thread())
            if not lost:
                self._writer.end_step(number)

        self.told += self.box.end_step(then)


@pytest.fixture
def steps(traced: Traced) -> Steps:
    return Steps(traced)


def journal_of(folder: Path) -> list[str]:
    """What its lines say, in short: a record's module, or a step."""
    lines = (folder / journal.rank_folder(0) / journal.JOURNAL).read_text().splitlines()
    return [
        line.partition('"number":')[2].partition(",")[0]
        if line.startswith('{"step"')
        else line.partition("step0/")[2].partition(":")[0]
        for line in lines
    ]


def until(is_true: Callable[[], bool]) -> None:
    stop = time.monotonic() + QUICK_S
    while not is_true():
        assert time.monotonic() < stop
        time.sleep(0.001)


def test_the_end_of_a_step_waits_for_no_device(
    traced: Traced, steps: Steps, device: FakeArenaDevice, tmp_path: Path
) -> None:
    device.may_go_on.clear()
    traced.put(0, torch.ones(3))
    start = time.monotonic()
    steps.end(0)
    assert time.monotonic() - start < QUICK_S
    assert (steps.lost, journal_of(tmp_path)) == ([], [])
    device.may_go_on.set()
    until(lambda: steps.lost == [False])
    assert traced.box.flush() == []
    assert journal_of(tmp_path) == ["m0", "0"]
    assert steps.threads != [threading.main_thread()]


def test_without_a_device_all_is_written_when_the_step_ends(
    traced: Traced, steps: Steps, tmp_path: Path
) -> None:
    """The companion: what returns at once above did not write."""
    traced.put(0, torch.ones(3))
    traced.put(1, torch.ones(3), payload=Late())
    steps.end(0)
    assert (steps.lost, steps.threads) == ([False], [threading.main_thread()])
    assert journal_of(tmp_path) == ["m0", "m1", "0"]


def test_a_step_without_records_gets_its_mark(traced: Traced, steps: Steps, tmp_path: Path) -> None:
    steps.end(0)
    steps.end(1)
    assert journal_of(tmp_path) == ["0", "1"]


@pytest.mark.parametrize("handed_bytes", [0, 1 << 30], ids=["threads", "hooks"])
def test_lines_of_a_step_follow_those_of_the_step_before(
    traced: Traced,
    steps: Steps,
    device: FakeArenaDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    handed_bytes: int,
) -> None:
    monkeypatch.setattr(outbox, "_HANDED_BYTES", handed_bytes)
    device.may_go_on.clear()
    large = torch.ones(1 << 15)  # whose bytes are written at once, by a thread or here
    traced.put(0, torch.zeros(3))
    traced.put(1, large)
    steps.end(0)
    traced.put(2, large * 2)
    traced.box.note(record_of(3, large))
    if not handed_bytes:
        until(lambda: traced.box._writers is not None and traced.box._writers._waiting[0].is_done)
    assert journal_of(tmp_path) == []
    device.may_go_on.set()
    until(lambda: steps.lost == [False])
    traced.put(4, torch.ones(3))
    steps.end(1)
    assert traced.box.flush() == []
    assert journal_of(tmp_path) == ["m0", "m1", "0", "m2", "m3", "m4", "1"]


def test_a_step_ends_after_the_one_before_it(
    traced: Traced, steps: Steps, device: FakeArenaDevice, tmp_path: Path
) -> None:
    for number in range(20):
        traced.put(number, torch.full((3,), number))
        steps.end(number)
    assert traced.box.flush() == []
    assert journal_of(tmp_path) == [text for n in range(20) for text in (f"m{n}", str(n))]
    assert steps.lost == [False] * 20
    traced.close()
    assert [int(value[0]) for value in traced.values()] == [*range(20)]


def test_nothing_is_lost_at_close(
    traced: Traced, steps: Steps, device: FakeArenaDevice, tmp_path: Path
) -> None:
    device.may_go_on.clear()
    traced.put(0, torch.zeros(3))
    steps.end(0)
    traced.put(1, torch.ones(3))
    timer = threading.Timer(0.05, device.may_go_on.set)
    timer.start()
    before = traced.box.waited_seconds
    assert traced.box.close() == []
    timer.join()
    assert traced.box.waited_seconds - before > 0.01
    traced.close()
    assert [int(value[0]) for value in traced.values()] == [0, 1]
    assert journal_of(tmp_path)[:3] == ["m0", "0", "m1"]
    assert running_threads() == 1


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "planted")


@pytest.mark.parametrize(
    ("owner", "name"), [(SegmentWriter, "reserve"), (TraceWriter, "note_lines")]
)
def test_a_full_disk_in_the_thread_stops_all_that_follows(
    traced: Traced,
    steps: Steps,
    device: FakeArenaDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    owner: type,
    name: str,
) -> None:
    traced.put(0, torch.zeros(3))
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full_disk)
        steps.end(0)
        until(lambda: traced.box.is_broken and steps.lost == [True])
    traced.put(1, torch.ones(3))  # there would be room by now
    steps.end(1)
    traced.put(2, torch.ones(3))
    (lost,) = [*steps.told, *traced.box.flush()]
    assert isinstance(lost.error, OSError)
    assert lost.where == "step0/m0:output.0"
    assert steps.lost == [True, True]
    assert journal_of(tmp_path) == []


def test_a_mark_that_cannot_be_written_stops_all_that_follows(
    traced: Traced,
    steps: Steps,
    device: FakeArenaDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced.put(0, torch.zeros(3))
    with monkeypatch.context() as patch:
        patch.setattr(TraceWriter, "end_step", full_disk)
        steps.end(0)
        until(lambda: traced.box.is_broken)
    traced.put(1, torch.ones(3))
    (lost,) = [*steps.told, *traced.box.flush()]
    assert isinstance(lost.error, OSError)
    assert "the end of a step" in lost.where
    assert journal_of(tmp_path) == ["m0"]


def test_one_record_that_is_lost_is_told_and_the_next_steps_are_there(
    traced: Traced, steps: Steps, device: FakeArenaDevice, tmp_path: Path
) -> None:

    def fail() -> memoryview:
        raise ZeroDivisionError("planted")

    traced.put(0, torch.zeros(3))
    item = Item(record_of(1, torch.zeros(3)))
    item.later = item.sent.later = fail
    with traced.box._lock:
        traced.box._hand_late(item)
    steps.end(0)
    traced.put(2, torch.ones(3))
    steps.end(1)
    (lost,) = [*steps.told, *traced.box.flush()]
    assert (lost.where, str(lost.error)) == ("step0/m1:output.0", "planted")
    assert steps.lost == [True, False]
    assert journal_of(tmp_path) == ["m0", "m2", "1"]


def test_without_threads_a_step_is_written_when_it_ends(
    traced: Traced,
    steps: Steps,
    device: FakeArenaDevice,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def fail(_: object) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", fail)
    traced.put(0, torch.zeros(3))
    steps.end(0)
    assert (steps.lost, steps.threads) == ([False], [threading.main_thread()])
    assert journal_of(tmp_path) == ["m0", "0"]
    assert traced.box.flush() == []


@pytest.mark.parametrize("name", ["__init__", "run"])
def test_a_fault_at_the_end_of_a_step_leaves_no_thread(
    traced: Traced, steps: Steps, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    def fail(*_: object) -> None:
        raise MemoryError("planted")

    monkeypatch.setattr(outbox, "_HANDED_BYTES", 0)
    traced.put(0, torch.ones(3))
    with monkeypatch.context() as patch:
        patch.setattr(Behind, name, fail)
        with pytest.raises(MemoryError):
            steps.end(0)
    assert traced.box.flush() == []
    assert running_threads() == 1
    assert len(traced.records()) == 1


class TestBehind:
    @pytest.fixture
    def writers(self, tmp_path: Path) -> Writers:
        return Writers(TraceWriter(tmp_path, RankInfo(rank=0, world_size=1)))

    def test_lines_may_follow_only_once_all_is_done(self, writers: Writers) -> None:
        seen: list[bool] = []
        step = Behind(writers, lambda _: seen.append(step.is_done))
        step.run()
        assert (seen, step.is_done) == ([False], True)

    def test_a_fault_in_what_follows_is_told(self, writers: Writers) -> None:
        def then(_: bool) -> None:
            raise ZeroDivisionError("planted")

        step = Behind(writers, then)
        assert step.start()
        step.join()
        (lost,) = step.lost
        assert isinstance(lost, Unwritten)
        assert str(lost.error) == "planted"
        assert step.is_broken
        assert not step.is_done


def test_a_thread_pauses_after_a_while_and_not_before(monkeypatch: pytest.MonkeyPatch) -> None:
    now, slept = [0.0], list[float]()
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])
    monkeypatch.setattr(time, "sleep", slept.append)
    pause = Pauses()
    for seconds in (0.0, writers._BUSY_S / 2, writers._BUSY_S / 3, writers._BUSY_S):
        now[0] += seconds
        pause()
    assert slept == [writers._PAUSE_S]
