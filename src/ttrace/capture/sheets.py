"""Sheets: what a device computes of many tensors at once, and the lines that say so.

Enters: what belongs to all parameters at one moment of a step (their values, their gradients), on a
GPU. Leaves: one slot with the bytes of them all, and how the lines of their records read. A sheet
is made once: step after step it is the same but for addresses and a few numbers, so that a tensor
costs no record, no id and no launch of its own. It must not know hooks or what a fault means.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from contextlib import suppress
from typing import NamedTuple

import torch

from ttrace.adapters.base import Adapter
from ttrace.core.ids import Kind, TensorId, is_inside
from ttrace.core.layout import Layout
from ttrace.core.record import Location, Record
from ttrace.trace.arena import Slot, TensorBatch
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FingerprintPayload, has_memory
from ttrace.trace.line_form import LineForm
from ttrace.trace.payload import FULL
from ttrace.trace.payloads import payload_for

SMALL_BYTES = 1 << 16  # chosen: a copy inside of a GPU takes no longer than its launch
_KEPT = 64  # chosen: kinds of tensors, times optimizers that step one after the other


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
