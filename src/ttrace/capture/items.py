"""What lies in an outbox: records on their way into the trace, with their bytes.

Enters: a record, and its bytes in portions, or a function that gives them when the step is over.
Leaves: what became of it. It must not know threads, nor where its memory comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from dataclasses import replace
from queue import SimpleQueue
from typing import NamedTuple

from ttrace.capture.memory import Portion
from ttrace.core.record import Record
from ttrace.trace.payload import Later


class Sent:
    """A record on its way: what became of it, once it is settled; None where it was lost."""

    __slots__ = ("encoded", "is_settled", "later", "record")

    def __init__(self) -> None:
        self.record: Record | None = None
        self.is_settled = False
        self.encoded: Record | None = None  # the record of `later`
        self.later: Later | None = None  # gives its bytes when the step is over

    @property
    def is_late(self) -> bool:
        return self.later is not None

    @property
    def xxh3(self) -> str | None:
        """Of its bytes."""
        at = None if self.record is None else self.record.location
        return None if at is None else at.xxh3


class Repeat(NamedTuple):
    """A tensor that was met before, and how its record reads if its bytes are still the same."""

    of: Sent
    record: Callable[[Record], Record | None]  # from the one of before; None: it is another tensor
    is_unchanged: bool = False  # nothing can have written into it since

    def encoded(self, record: Record) -> tuple[Record, Later] | None:
        """What a device computed of it before, where that is of this record, too."""
        before, later = self.of.encoded, self.of.later
        if not self.is_unchanged or before is None or later is None:
            return None
        mine, others = ((r.shape, r.dtype, r.layout, r.batch_dim) for r in (record, before))
        return (replace(record, payload=before.payload), later) if mine == others else None


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
