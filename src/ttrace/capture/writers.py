"""The threads behind an outbox: they write bytes at once and in parallel, and lines in order.

Enters: items in the order in which hooks met their tensors. Leaves: a trace, what each record
became, and what was lost. It must not know where the memory of an item comes from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from queue import SimpleQueue
from typing import NamedTuple

import xxhash

from ttrace.capture.guard import in_background
from ttrace.capture.items import Item, Repeat, Unwritten
from ttrace.capture.memory import LOOKS_S
from ttrace.capture.pages import write_page
from ttrace.core.record import Record
from ttrace.trace.writer import TraceWriter


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
        for item in list(self._waiting):
            if not (item.is_done or item.sent.is_late or self.is_broken):
                self._settle(item)
        if self._waiting and not self.is_broken:
            write_page([item for item in self._waiting if not item.is_done], self._writer)
            self._end_lines(self._waiting)
            self._waiting.clear()

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
            ready = []
            while self._waiting and self._waiting[0].is_done:
                ready.append(self._waiting.popleft())
            self._end_lines(ready)
            self._turn.notify_all()

    def _end_lines(self, items: Iterable[Item]) -> None:
        """The lines of items whose turn it is; nothing follows a disk that takes no more."""
        ready = []
        for item in items:
            if self.is_broken or item.is_void:
                continue
            if item.error is None:
                ready.append(item)
            else:
                self._lose(item, item.error)
        if ready:
            self._note(ready)

    def _note(self, items: Sequence[Item]) -> None:
        try:
            self._writer.note(*(record for item in items if (record := item.sent.record)))
        except Exception as error:  # noqa: BLE001  (the recorder tells it)
            if len(items) > 1 and not isinstance(error, OSError):
                for item in items:  # one of them cannot be written
                    self._note([item])
                return
            for item in items:
                item.sent.record = None
            self._lose(items[0], error)

    def _lose(self, item: Item, error: Exception) -> None:
        item.sent.record = None
        self.lost.append(Unwritten(str(item.record.id), error))
        self.is_broken |= isinstance(error, OSError)

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
