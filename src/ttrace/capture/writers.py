"""The threads behind an outbox: they write bytes at once and in parallel, and lines in order.

    Writers       the threads of one step: each item's bytes, then the lines whose turn has come
    write_page    what waits for the end of a step: all of its bytes in one piece
    Behind        what is left of a step when it ends, written while the next one runs

Enters: items in the order in which hooks met their tensors. Leaves: a trace, what each record
became, and what was lost. It must not know where the memory of an item comes from, nor devices.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import closing
from itertools import chain
from queue import SimpleQueue

import xxhash

from ttrace.capture.guard import in_background
from ttrace.capture.items import Item, Repeat, Sent, SheetItem, Unwritten
from ttrace.capture.memory import LOOKS_S
from ttrace.core.record import Location, Record
from ttrace.trace.payload import Later
from ttrace.trace.writer import PagePart, TraceWriter

# Measured on an H200: threads that share one interpreter wait for it between chunks, so that 12 of
# them hash 26 GB/s in chunks of 1 MiB, and 36 GB/s where they take what comes in one.
_SHARED_CHUNK_BYTES = 1 << 26
# Chosen: Python lets a thread run for 5 ms before another may, in which a GPU runs dry; and a sleep
# as short as a system makes it.
_BUSY_S = 3e-4
_PAUSE_S = 5e-5


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
        # a, b and c were handed over; a thread has written a, the bytes of b come late, and no
        # thread took c:
        #     waiting: b c       the line of a is in the journal: its turn had come
        #     c is settled       its bytes are in the trace, its line waits behind that of b
        #     the page of b      then the lines of b and c
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


def write_page(late: Sequence[Item], writer: TraceWriter, pause: Callable[[], None]) -> None:
    """Write what waits for the end of a step; every item has its record then, or its error.

    Bytes that were met before, and are still the same, are not written again. `pause` is called
    after each little piece of work.
    """
    page = _Page(pause)
    for item in late:
        try:
            page.take(item)
        except Exception as error:  # noqa: BLE001  (told with the record, when it is its turn)
            item.error = error
    try:
        locations = writer.append_all(page.parts)
    except Exception as error:  # noqa: BLE001  (the same)
        for item in late:
            item.error = item.error or error
        return
    for item in late:
        pause()
        if item.error is not None:
            continue
        if isinstance(item, SheetItem):
            item.put_at([locations[place] for place in page.sheets[item]])
        else:
            place = page.places[item.sent]
            item.sent.record = _placed(item, locations[place] if isinstance(place, int) else place)


class _Page:
    def __init__(self, pause: Callable[[], None]) -> None:
        self._pause = pause
        self.parts: list[PagePart] = []
        self.places: dict[Sent, int | Location] = {}  # in `parts`, or where it was before
        self.sheets: dict[SheetItem, list[int]] = {}  # places of each of their records
        self._given: dict[Later, int | Location] = {}
        self._equal: dict[str, int] = {}  # places of what sheets have, by checksum

    def take(self, item: Item) -> None:
        assert item.later is not None
        self._pause()
        if isinstance(item, SheetItem):
            parts = item.sheet.parts(item.later())
            self.sheets[item] = [self._place_of_equal(part) for part in parts]
            return
        place = self._given.get(item.later)
        if place is None:
            data = item.later()
            part = PagePart(data, xxhash.xxh3_64_hexdigest(data))
            place = self._place_before(item, part)
            if place is None:
                place = len(self.parts)
                self.parts.append(part)
            self._given[item.later] = place
        self.places[item.sent] = place

    def _place_of_equal(self, data: memoryview) -> int:
        """Of these bytes, or of equal ones that another kind of the same parameter has."""
        self._pause()
        xxh3 = xxhash.xxh3_64_hexdigest(data)
        place = self._equal.get(xxh3)
        if place is None or self.parts[place].data.nbytes != data.nbytes:
            place = self._equal[xxh3] = len(self.parts)
            self.parts.append(PagePart(data, xxh3))
        return place

    def _place_before(self, item: Item, part: PagePart) -> int | Location | None:
        """Where the tensor of this item was put when it was met before, if it is unchanged."""
        if item.repeat is None:
            return None
        before = item.repeat.of
        place = self.places.get(before)
        if isinstance(place, int):
            return place if self.parts[place].xxh3 == part.xxh3 else None
        if place is None:
            place = None if before.record is None else before.record.location
        is_same = place is not None and (place.size_bytes, place.xxh3) == (
            part.data.nbytes,
            part.xxh3,
        )
        return place if is_same else None


def _placed(item: Item, location: Location) -> Record:
    """The record of an item, which another may have been before it with the same bytes."""
    before = None if item.repeat is None else item.repeat.of.record
    if item.repeat is not None and before is not None and before.location == location:
        again = item.repeat.record(before)
        if again is not None:
            return again
    return item.record.at(location)


class Pauses:
    """Lets the run go first; to be called after each little piece of work."""

    def __init__(self) -> None:
        self._since = time.perf_counter()

    def __call__(self) -> None:
        if time.perf_counter() - self._since > _BUSY_S:
            time.sleep(_PAUSE_S)
            self._since = time.perf_counter()


class Behind:
    """What is left of one step; `then` is told whether anything of it was lost."""

    def __init__(self, writers: Writers, then: Callable[[bool], None]) -> None:
        self._writers = writers
        self._then = then
        self._thread: threading.Thread | None = None
        self.is_done = False  # and all lines that come next may follow

    @property
    def is_broken(self) -> bool:
        return self._writers.is_broken

    @property
    def lost(self) -> list[Unwritten]:
        return self._writers.lost

    def start(self) -> bool:
        """Whether a thread does it: a process that ends starts no more."""
        thread = threading.Thread(
            target=in_background,
            args=(lambda: self.run(Pauses()), self._fail),
            name="ttrace-writer",
            daemon=True,
        )
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def run(self, pause: Callable[[], None] | None = None) -> None:
        self._writers.end(pause)
        self._then(bool(self.lost) or self.is_broken)
        self.is_done = not self.is_broken

    def join(self) -> None:
        """Return when it is written, and no thread is left, also after a fault on the way."""
        if self._thread is not None:
            self._thread.join()
        self._writers.end()

    def _fail(self, error: Exception) -> None:
        self.lost.append(Unwritten("the end of a step (recording stops here)", error))
        self._writers.is_broken = True
