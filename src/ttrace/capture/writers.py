"""The threads behind an outbox: they write bytes at once and in parallel, and lines in order.

Enters: items in the order in which hooks met their tensors. Leaves: a trace, what each record
became, and what was lost. It must not know where the memory of an item comes from.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from queue import SimpleQueue

import xxhash

from ttrace.capture.guard import in_background
from ttrace.capture.items import Item, Repeat, Unwritten
from ttrace.capture.memory import LOOKS_S
from ttrace.capture.pages import write_page
from ttrace.core.record import Record
from ttrace.trace.writer import TraceWriter

# Measured on an H200: threads that share one interpreter wait for it between chunks, so that 12 of
# them hash 26 GB/s in chunks of 1 MiB, and 36 GB/s where they take what comes in one.
_SHARED_CHUNK_BYTES = 1 << 26


class Writers:
    """The threads of one step."""

    def __init__(self, writer: TraceWriter, is_turn: Callable[[], bool] = lambda: True) -> None:
        """`is_turn`: whether all lines of the step before are in the journal."""
        self.lost: list[Unwritten] = []
        self.is_broken = False
        self._writer = writer
        self._is_turn = is_turn
        self._threads: list[threading.Thread] = []
        self._queue: SimpleQueue[Item | None] = SimpleQueue()
        self._waiting: deque[Item] = deque()  # for their lines, in order
        self._turn = threading.Condition()
        self._pause = _go_on

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

    def end(self, pause: Callable[[], None] | None = None) -> None:
        """Return when all is in the trace, or lost; no thread is left then.

        All of the step before is there. `pause` is called again and again.
        """
        self._pause = pause or _go_on
        for _ in self._threads:
            self._queue.put(None)
        for thread in self._threads:
            thread.join()
        self._threads.clear()
        for item in list(self._waiting):
            if not (item.is_done or item.sent.is_late or self.is_broken):
                self._settle(item)
        if self._waiting and not self.is_broken:
            late = [item for item in self._waiting if not item.is_done]
            write_page(late, self._writer, self._pause)
            self._end_lines(self._waiting)
        for item in self._waiting:  # lost after a fault, and nobody is to wait for it
            item.sent.is_settled = True
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
            while self._waiting and self._waiting[0].is_done and self._is_turn():
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
            lines: list[str] = []
            for item in items:
                lines += item.lines()
                self._pause()
            self._writer.note_lines(*lines)
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
        self.lost.append(Unwritten(item.name, error))
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
        if item.repeat is not None:
            first = next(parts, memoryview(b""))
            if first.nbytes == size_bytes:
                again = self._again(item.repeat, xxhash.xxh3_64_hexdigest(first), size_bytes)
                if again is not None:
                    return again
            parts = chain((first,), parts)
        reserved = self._writer.reserve(size_bytes)
        chunks = {"chunk_bytes": _SHARED_CHUNK_BYTES} if len(self._threads) > 1 else {}
        try:
            for data in parts:
                reserved.write(data, **chunks)
            if not reserved.is_whole:
                raise ValueError(f"only a part of the {size_bytes} bytes came")
            again = None
            if item.repeat is not None:  # it was too large to be known before it was written
                again = self._again(item.repeat, reserved.xxh3, size_bytes)
            if again is None:
                return self._writer.keep(item.record, reserved)
        except BaseException:
            self._writer.give_back(reserved)
            raise
        self._writer.give_back(reserved)
        return again

    def _again(self, repeat: Repeat, xxh3: str, size_bytes: int) -> Record | None:
        """Its record, if these are the bytes of the one before.

        That is waited for only when these are hashed: another thread does it at the same time.
        """
        with self._turn:
            while not (repeat.of.is_settled or repeat.of.is_late or self.is_broken):
                self._turn.wait(LOOKS_S)
        before = repeat.of.record
        at = None if before is None else before.location
        if before is None or at is None or (at.size_bytes, at.xxh3) != (size_bytes, xxh3):
            return None
        return repeat.record(before)


def _go_on() -> None:
    """No pause."""
