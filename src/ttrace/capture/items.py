"""What lies in an outbox: records on their way into the trace, one by one or a sheet of them.

An item is a record with its bytes, in portions, or as a function that gives them when the step is
over. A sheet is what a device computes of many tensors at once: what belongs to all parameters at
one moment of a step (their values, their gradients), on a GPU. It is made once: step after step it
is the same but for addresses and a few numbers, so that a tensor costs no record, no id and no
launch of its own.

Enters: records, and tensors of parameters. Leaves: what became of each in the trace. It must not
know hooks, threads, or what a fault means.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Generator, Sequence
from contextlib import suppress
from queue import SimpleQueue
from typing import NamedTuple

import torch

from ttrace.adapters.base import Adapter
from ttrace.capture.memory import Portion
from ttrace.core.ids import Kind, TensorId, is_inside
from ttrace.core.layout import Layout
from ttrace.core.record import Location, Record
from ttrace.trace.arena import Slot, TensorBatch
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FingerprintPayload, has_memory
from ttrace.trace.journal import LineForm, line_of
from ttrace.trace.payload import FULL, Later
from ttrace.trace.payloads import payload_for

SMALL_BYTES = 1 << 16  # chosen: a copy inside of a GPU takes no longer than its launch
_KEPT = 64  # chosen: kinds of tensors, times optimizers that step one after the other


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


class OwnTensor(NamedTuple):
    """What this rank holds of a parameter: the tensor as it lies in memory, and its layout."""

    module: str
    slot: str
    tensor: torch.Tensor
    layout: Layout | None


class Sheet:
    """What is the same in each step."""

    def __init__(self, records: Sequence[Record], payload: FingerprintPayload) -> None:
        self.first = records[0]
        self.names = [(record.id.module, record.id.slot) for record in records]
        forms, sizes, self._lines = [], [], []
        for record in records:
            stored = payload.stored(record) if payload.takes_record(record) else None
            forms.append(None if stored is None else stored.form)
            sizes.append(payload.stored_bytes(record))
            described = record if stored is None else record.stored_as(stored.described)
            self._lines.append(LineForm(described))
        self.batch = TensorBatch(forms, sizes)

    def parts(self, data: memoryview) -> list[memoryview]:
        """The bytes of every record."""
        return [
            data[start : start + size]
            for start, size in zip(self.batch.starts, self.batch.sizes, strict=True)
        ]

    def lines(self, step: int, sequence: int, places: Sequence[Location]) -> list[str]:
        """Of all records of a step, of which the first has this place in it."""
        return [
            line.text(step, sequence + number, place)
            for number, (line, place) in enumerate(zip(self._lines, places, strict=True))
        ]


class Sheets:
    """Those of a run; nothing `inside` of some blocks is in one, since their values are wanted."""

    def __init__(
        self, payload: FingerprintPayload, adapter: Adapter, rank: int, inside: Collection[str]
    ) -> None:
        self._payload = payload
        self._adapter = adapter
        self._rank = rank
        self._inside = inside
        self._known: dict[object, Sheet] = {}

    def sorted_out(
        self, entries: Sequence[OwnTensor]
    ) -> tuple[dict[torch.device, list[OwnTensor]], list[OwnTensor]]:
        """Entries for sheets as they lie in memory, by device, and those that are recorded alone.

        The latter are also those with which something is wrong: that is told then.
        """
        together: dict[torch.device, list[OwnTensor]] = {}
        alone: list[OwnTensor] = []
        for entry in entries:
            found = None
            if entry.tensor.is_cuda and not (
                self._inside and is_inside(entry.module, self._inside)
            ):
                with suppress(Exception):
                    local = self._local(entry)
                    found = local if self._takes(local.tensor) else None
            if found is not None:
                together.setdefault(found.tensor.device, []).append(found)
            else:
                alone.append(entry)
        return together, alone

    def put(self, kind: Kind, entries: Sequence[OwnTensor]) -> tuple[Sheet, Slot]:
        """Queue all of them, which are on one device."""
        key = (
            kind,
            tuple(
                (entry.module, entry.slot, entry.tensor.shape, entry.tensor.dtype, entry.layout)
                for entry in entries
            ),
        )
        sheet = self._known.get(key)
        if sheet is None:
            if len(self._known) >= _KEPT:
                self._known.clear()
            sheet = Sheet([self._record(kind, entry) for entry in entries], self._payload)
            self._known[key] = sheet
        tensors = [entry.tensor for entry in entries]
        return sheet, self._payload.arenas.of(tensors[0]).batch(tensors, sheet.batch)

    def _local(self, entry: OwnTensor) -> OwnTensor:
        local, layout = self._adapter.to_local(entry.tensor)
        if layout is None and entry.layout is not None and fits(entry.layout, local):
            layout = entry.layout
        return OwnTensor(entry.module, entry.slot, local, layout)

    def _takes(self, tensor: torch.Tensor) -> bool:
        """Whether a device can do it with others: in one piece, and small or made small."""
        if not (tensor.is_contiguous() and has_memory(tensor)):
            return False
        if tensor.is_neg() or tensor.is_conj():
            return False
        payload = payload_for(tensor, self._payload)  # that of a package comes first
        return payload is self._payload or (payload is FULL and tensor.nbytes <= SMALL_BYTES)

    def _record(self, kind: Kind, entry: OwnTensor) -> Record:
        """As any step has it: which one, and where in it, is told with each step."""
        layout = entry.layout
        return Record(
            id=TensorId(step=0, module=entry.module, kind=kind, slot=entry.slot),
            rank=self._rank,
            sequence=0,
            dtype=dtype_name(entry.tensor.dtype),
            shape=tuple(entry.tensor.shape) if layout is None else layout.local_shape,
            layout=layout,
        )


def fits(layout: Layout, local: torch.Tensor) -> bool:
    """Whether a layout may be that of a local tensor, whose elements it may group otherwise."""
    return math.prod(layout.local_shape) == local.numel()
