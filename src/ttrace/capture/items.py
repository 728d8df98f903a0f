"""What lies in an outbox: records on their way into the trace, with their bytes.

Enters: a record, and its bytes in portions, or a function that gives them when the step is over.
Leaves: what became of it. It must not know threads, nor where its memory comes from.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from queue import SimpleQueue
from typing import NamedTuple

from ttrace.capture.memory import Portion
from ttrace.capture.sheets import Sheet
from ttrace.core.record import Location, Record
from ttrace.trace.arena import Slot
from ttrace.trace.line_form import line_of
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
        if mine != others:
            return None
        return record if before.payload is None else record.stored_as(before.payload), later


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

    @property
    def name(self) -> str:
        """For a person, where it is lost."""
        return str(self.record.id)

    def lines(self) -> Sequence[str]:
        """What the journal is to say, once its bytes are in the trace."""
        return () if self.sent.record is None else (line_of(self.sent.record),)

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


class SheetItem(Item):
    """All records of a sheet in one step; the first stands for them where they are lost."""

    def __init__(self, sheet: Sheet, slot: Slot, step: int, sequence: int) -> None:
        super().__init__(sheet.first)
        self.sheet = sheet
        self.later = self.sent.later = slot
        self._step = step
        self._sequence = sequence
        self._places: Sequence[Location] = ()

    @property
    def name(self) -> str:
        return f"{len(self.sheet.names)} tensors, {self.record.id.kind} of each parameter"

    def put_at(self, places: Sequence[Location]) -> None:
        """Where the bytes of each are in the trace."""
        self._places = places

    def lines(self) -> Sequence[str]:
        if self.error is not None or not self._places:
            return ()
        return self.sheet.lines(self._step, self._sequence, self._places)

    def checksums(self) -> dict[tuple[str, str], str]:
        """Of what the trace has of each parameter, by its name."""
        return {
            name: place.xxh3 for name, place in zip(self.sheet.names, self._places, strict=False)
        }


class Written:
    """Tensors of parameters that were recorded together: what the trace has of each, by its name.

    None of one that is not there; nothing is before the step is written.
    """

    def __init__(self) -> None:
        self.sheets: list[SheetItem] = []
        self.alone: dict[tuple[str, str], Sent] = {}

    def checksums(self) -> dict[tuple[str, str], str | None]:
        found = {name: sent.xxh3 for name, sent in self.alone.items()}
        for item in self.sheets:
            found |= item.checksums()
        return found
