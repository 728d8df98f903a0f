"""The threads behind an outbox: they write bytes at once and in parallel, and lines in order.

Enters: items in the order in which hooks met their tensors. Leaves: a trace, what each record
became, and what was lost. It must not know where the memory of an item comes from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Generator, Iterator
from contextlib import closing
from itertools import chain
from queue import SimpleQueue
from typing import NamedTuple

import xxhash

from ttrace.capture.guard import in_background
from ttrace.capture.memory import LOOKS_S, Portion
from ttrace.core.record import Record
from ttrace.trace.payload import Later
from ttrace.trace.writer import TraceWriter


class Sent:
    """A record on its way: what became of it, once it is settled; None where it was lost."""

    __slots__ = ("is_late", "is_settled", "record")

    def __init__(self, *, is_late: bool = False) -> None:
        self.record: Record | None = None
        self.is_settled = False
        self.is_late = is_late  # its bytes are known when the step is over

    @property
    def xxh3(self) -> str | None:
        """Of its bytes."""
        at = None if self.record is None else self.record.location
        return None if at is None else at.xxh3


class Repeat(NamedTuple):
    """A tensor that was met before, and how its record reads if its bytes are still the same."""

    of: Sent
    record: Callable[[Record], Record | None]  # from the one of before; None: it is another tensor


class Unwritten(NamedTuple):
    """What did not come into the trace. After an OSError nothing more does."""

    where: str
    error: Exception


class Item:
    """One record in the outbox, with its bytes: in portions, or later, or none.

    Whoever fills it puts None behind the last portion, and makes it void where filling fails.
    """

    def __init__(self, record: Record, repeat: Repeat | None = None) -> None:
        self.record = record
        self.repeat = repeat
        self.size_bytes: int | None = None  # None where it has no bytes
        self.portions: SimpleQueue[Portion | None] | None = None
        self.later: Later | None = None
        self.sent = Sent()
        self.error: Exception | None = None
        self.is_done = False
        self.is_void = False
        self.is_held = False  # whether a portion of it could not be freed, or is in use

    def parts(self) -> Generator[memoryview, None, None]:
        """Its bytes, or the rest of them; each part is there until the next is asked for."""
        while self.portions is not None:
            portion = self.portions.get()
            if portion is None:
                self.portions = None
                return
            self.is_held = True
            try:
                yield portion.data()
            finally:
                portion.free()
                self.is_held = False

    def drop(self) -> None:
        """Free what is left of it."""
        for _ in self.parts():
            pass


class Writers:
    """The threads of one step."""

    def __init__(self, writer: TraceWriter) -> None:
        self.lost: list[Unwritten] = []
        self.is_broken = False
        self._writer = writer
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._waiting: deque[Item] = deque()  # for their lines, in order
        self._turn = threading.Condition()

    def start(self, count: int) -> bool:
        """Have so many threads; False where there is none: a process that ends starts no more."""
        while len(self._threads) < count:
            thread = threading.Thread(
                target=in_background,
                args=(self._work, self._fail),
                name="ttrace-writer",
                daemon=True,
            )
            try:
                thread.start()
            except RuntimeError:  # of the interpreter, when it ends
                break
            self._threads.append(thread)
        return self.is_alive()

    def is_alive(self) -> bool:
        return any(thread.is_alive() for thread in self._threads)

    def hand(self, item: Item) -> None:
        """Have it written by a thread, or in the end; late ones wait for that anyway."""
        self._waiting.append(item)
        if not item.sent.is_late:
            self._queue.put(item)

    def write(self, item: Item) -> None:
        """Write it here and now, which takes no thread."""
        self._waiting.append(item)
        self._settle(item)

    def end(self) -> None:
        """Return when all is in the trace, or lost; no thread is left then."""
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        while self._waiting and not self.is_broken:
            self._settle(self._waiting[0])

    def _work(self) -> None:
        while (item := self._queue.get()) is not None:
            self._settle(item)

    def _fail(self, error: Exception) -> None:
        self.lost.append(Unwritten("what was to be written next (recording stops here)", error))
        self.is_broken = True

    def _settle(self, item: Item) -> None:
        """Write its bytes, then all lines whose turn has come."""
        try:
            if not self.is_broken:
                item.sent.record = self._stored(item)
        except Exception as error:  # noqa: BLE001  (told with the record, when it is its turn)
            item.error = error
        if item.portions is not None:  # what a fault left over
            item.drop()
        if item.is_held:
            raise RuntimeError(f"memory stays taken: {item.error}")  # others would wait for it
        with self._turn:
            item.sent.is_settled = item.is_done = True
            while self._waiting and self._waiting[0].is_done:
                self._end_line(self._waiting.popleft())
            self._turn.notify_all()

    def _end_line(self, item: Item) -> None:
        if self.is_broken or item.is_void:
            return
        try:
            if item.error is not None:
                raise item.error
            assert item.sent.record is not None
            self._writer.note(item.sent.record)
        except Exception as error:  # noqa: BLE001  (the recorder tells it)
            item.sent.record = None
            self.lost.append(Unwritten(str(item.record.id), error))
            self.is_broken = isinstance(error, OSError)

    def _stored(self, item: Item) -> Record:
        """The record with its location: that of before, where its bytes are the same."""
        if item.later is not None:
            data = item.later()
            return self._placed(item, iter((data,)), data.nbytes)
        if item.size_bytes is None:
            return item.record
        with closing(item.parts()) as parts:
            return self._placed(item, parts, item.size_bytes)

    def _placed(self, item: Item, parts: Iterator[memoryview], size_bytes: int) -> Record:
        again = None if item.repeat is None else self._again(item.repeat, size_bytes)
        if again is not None:
            first = next(parts, memoryview(b""))
            if first.nbytes == size_bytes and xxhash.xxh3_64_hexdigest(first) == again.xxh3:
                return again.record
            parts = chain((first,), parts)
        reserved = self._writer.reserve(size_bytes)
        try:
            for data in parts:
                reserved.write(data)
            if not reserved.is_whole:
                raise ValueError(f"only a part of the {size_bytes} bytes came")
            if again is None or reserved.xxh3 != again.xxh3:
                return self._writer.keep(item.record, reserved)
        except BaseException:
            self._writer.give_back(reserved)
            raise
        self._writer.give_back(reserved)  # it was too large to be known before it was written
        return again.record

    def _again(self, repeat: Repeat, size_bytes: int) -> _Again | None:
        with self._turn:
            while not (repeat.of.is_settled or repeat.of.is_late or self.is_broken):
                self._turn.wait(LOOKS_S)
        before = repeat.of.record
        record = None if before is None else repeat.record(before)
        at = None if record is None else record.location
        if record is None or at is None or at.size_bytes != size_bytes:
            return None
        return _Again(record, at.xxh3)


class _Again(NamedTuple):
    """The record of a repeated tensor, if its bytes have this checksum."""

    record: Record
    xxh3: str
