"""Makes records of tensors, each object once, and keeps every fault away from the training run.

A tensor that is one module's output and the next one's input is stored once; so is its gradient.
Values are fixed before the hook returns, so later in-place changes cannot reach them; the outbox
writes them while training goes on. What recording takes of a step is added up here as well.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch

from ttrace.adapters.base import Adapter, BoundarySpec, SentTokens
from ttrace.capture.guard import Guard
from ttrace.capture.items import (
    OwnTensor,
    Repeat,
    Sent,
    SheetItem,
    Sheets,
    Unwritten,
    Written,
    fits,
)
from ttrace.capture.outbox import Outbox
from ttrace.capture.repeats import ObjectMemory, collectives_made, is_of_layers, met_again
from ttrace.core.ids import Kind, TensorId, is_inside
from ttrace.core.layout import Layout
from ttrace.core.record import Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FingerprintPayload
from ttrace.trace.payload import FULL, Payload
from ttrace.trace.payloads import payload_for
from ttrace.trace.quantised import Quantised
from ttrace.trace.writer import TraceWriter

_Work = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Moment:
    """When in its step a tensor was met."""

    sequence: int
    microbatch: int
    recompute: bool = False


class Recorder:
    """Capture writes everything through this; `payload` is the form that the run asks for."""

    def __init__(
        self,
        adapter: Adapter,
        writer: TraceWriter,
        rank: int,
        payload: Payload = FULL,
        guard: Guard | None = None,
        inside: Collection[str] = (),
    ) -> None:
        self._adapter = adapter
        self._writer = writer
        self._rank = rank
        self._payload = payload
        self._inside = inside  # blocks of which values are recorded, whatever the payload
        self._sequence = 0
        # And how many collectives had been made by then: they change tensors unseen.
        self._values: ObjectMemory[tuple[Sent, int]] = ObjectMemory()
        self._outbox = Outbox(writer)
        self._sheets: Sheets | None = None
        if isinstance(payload, FingerprintPayload):
            self._sheets = Sheets(payload, adapter, rank, inside)
        self._broken = False
        self.is_muted = False  # in steps that are let pass
        self.costs = Costs(self._outbox, writer)
        self._then: list[_Work] = []  # to be done when this step is
        self.guard = guard or Guard()

    def value(
        self,
        id: TensorId,  # noqa: A002
        tensor: torch.Tensor,
        *,
        microbatch: int = 0,
        recompute: bool = False,
        layout: Layout | None = None,
        boundary: BoundarySpec | None = None,
        sequence: int | None = None,
        is_whole: bool = False,
    ) -> Sent | None:
        """Record a tensor; `layout` or the boundary's is used where it does not know its own.

        `is_whole`: all of its values, whatever form the run asks for.
        """
        if self.is_muted or not self._is_open():
            return None
        sequence = self.next_sequence() if sequence is None else sequence
        when = _Moment(sequence=sequence, microbatch=microbatch, recompute=recompute)
        start = time.perf_counter()
        try:
            asked = FULL if is_whole or self._is_inside(id.module) else self._payload
            return self._take(id, tensor, when, layout, boundary, asked)
        finally:
            self.costs.seconds += time.perf_counter() - start

    def _take(
        self,
        id: TensorId,  # noqa: A002
        tensor: torch.Tensor,
        when: _Moment,
        layout: Layout | None,
        boundary: BoundarySpec | None,
        asked: Payload,
    ) -> Sent | None:
        local, own_layout = self._adapter.to_local(tensor)
        if boundary is not None and boundary.rows:
            self._sent(id, local, boundary, when)
            return None
        if boundary is not None:
            local = local.permute(boundary.dims) if boundary.dims else local
            layout = boundary.layout
        if own_layout is None and layout is not None and fits(layout, local):
            own_layout = layout
        batch_dim = None if boundary is None else boundary.batch_dim
        record = self._record(id, local, when, layout=own_layout, batch_dim=batch_dim)
        # The output of a norm, with 7 collectives made so far, and the same as input of a linear:
        #     norm:output      not met before     its bytes are put; kept are `sent` and 7
        #     linear:input     Repeat(sent)       7 still: nothing can have changed it
        #                                         8: it is read again, to see whether one did
        payload, made, again = payload_for(local, asked), 0, None
        if local.is_cuda and payload.on_device:
            made = collectives_made()
        if (known := self._values.find(tensor)) is not None:
            sent, before = known
            is_unchanged = local.is_cuda and made == before and is_of_layers(id)
            again = Repeat(sent, partial(met_again, record, layout), is_unchanged)
        if payload is FULL:
            record, local = as_kept(record, local, self._adapter.quantised(tensor), boundary)
        sent = self._outbox.put(record, local, payload, again)
        self._values.keep(tensor, (sent, made))
        return sent

    def values(self, step: int, kind: Kind, entries: Sequence[OwnTensor]) -> Written:
        """Record one kind of what belongs to parameters, all that a device can do at once so."""
        written = Written()
        if self.is_muted or not self._is_open():
            return written
        start, alone = time.perf_counter(), list(entries)
        if self._sheets is not None:
            together, alone = self._sheets.sorted_out(entries)
            for some in together.values():
                put = partial(self._put_sheet, self._sheets, step, kind, some, written)
                self.guard.recording(f"{kind} of {len(some)} parameters", put)
        self.costs.seconds += time.perf_counter() - start
        for entry in alone:
            id_ = TensorId(step=step, module=entry.module, kind=kind, slot=entry.slot)
            put_alone = partial(self.value, id_, entry.tensor, layout=entry.layout)
            if (sent := self.guard.recording(id_, put_alone)) is not None:
                written.alone[entry.module, entry.slot] = sent
        return written

    def mention(
        self,
        id: TensorId,  # noqa: A002
        tensor: torch.Tensor,
        *,
        microbatch: int,
        same_as: TensorId,
    ) -> None:
        """Note a gradient that is stored under another id: the tensor is the same object."""
        if not self.is_muted and self._is_open():
            when = _Moment(sequence=self.next_sequence(), microbatch=microbatch)
            self._outbox.note(self._record(id, tensor, when, same_as=same_as))

    def begin_step(self) -> None:
        self.costs.begin()
        self._then = []

    def when_written(self, work: _Work) -> None:
        """Do it once all of this step is in the trace, perhaps in another thread."""
        self._then.append(work)

    def flush(self) -> None:
        """Wait until all that was recorded is in the trace, and say what could not be written."""
        start = time.perf_counter()
        self._tell(self._outbox.flush())
        self.costs.seconds += time.perf_counter() - start

    def end_step(self, number: int | None) -> None:
        """Nothing more of a step comes; one with a number is said to be in the trace once it is.

        Where a device still computes what is to be written, that is later, and nobody waits.
        """
        start = time.perf_counter()
        self._values.clear()
        self._payload.end_step()
        if number is not None:
            is_whole = not (self._broken or self.guard.faults())
            written = partial(self._end_written, number if is_whole else None, self._then)
            self._tell(self._outbox.end_step(written))
        self.costs.seconds += time.perf_counter() - start

    @property
    def has_room(self) -> bool:
        """Whether another step like those before fits into what the trace may take."""
        if self._writer.is_limited:
            self.flush()
        return self._writer.has_room

    def withdraw(self) -> None:
        self._tell(self._outbox.close())
        self._writer.withdraw()

    def abandon(self) -> None:
        """Leave the trace as it is, without an end: it never looks whole.

        Where a fault keeps the outbox from ending, who guards the run calls this again.
        """
        self._tell(self._outbox.close())
        self._writer.abandon()

    def close(self, summary: Summary) -> None:
        try:
            self.flush()
            self._writer.close(replace(summary, faults=self.guard.faults()))
        except OSError as error:
            self.guard.lost("the end of the trace", error)
        finally:
            self.abandon()

    def next_sequence(self) -> int:
        """A place in the order of the step, for a record that may be written later."""
        self._sequence += 1
        return self._sequence

    def _record(
        self,
        id_: TensorId,
        local: torch.Tensor,
        when: _Moment,
        *,
        layout: Layout | None = None,
        batch_dim: int | None = None,
        origin: int | None = None,
        same_as: TensorId | None = None,
    ) -> Record:
        return Record(
            id=id_,
            rank=self._rank,
            sequence=when.sequence,
            dtype=dtype_name(local.dtype),
            shape=tuple(local.shape) if layout is None else layout.local_shape,
            microbatch=when.microbatch,
            recompute=when.recompute,
            layout=layout,
            batch_dim=batch_dim,
            origin=origin,
            same_as=same_as,
        )

    def _sent(
        self, id_: TensorId, local: torch.Tensor, boundary: BoundarySpec, when: _Moment
    ) -> None:
        for part, dense in dense_rows(local, boundary.rows):
            batch_dim, origin = boundary.batch_dim, part.origin
            record = self._record(
                id_, dense, when, layout=part.layout, batch_dim=batch_dim, origin=origin
            )
            self._outbox.put(record, dense, payload_for(dense, self._payload))

    def _is_open(self) -> bool:
        """Whether anything is still recorded: threads that write may have failed since."""
        if self._outbox.is_broken and not self._broken:
            self.flush()
        return not self._broken

    def _tell(self, lost: list[Unwritten]) -> None:
        for where, error in lost:
            if isinstance(error, OSError):
                self._broken = True
                self.guard.stopped(where, error)
            else:
                self.guard.lost(where, error)

    def _end_written(self, number: int | None, then: Sequence[_Work], lost: bool) -> None:  # noqa: FBT001
        """All of a step was written, or lost: say so in the trace where it is all there."""
        for work in then:
            self.guard.recording("what is told of a step", work)
        if number is not None and not lost:
            self._writer.end_step(number)
        self.costs.end()

    def _is_inside(self, module: str) -> bool:
        """Whether values are recorded of it, whatever the payload."""
        return bool(self._inside) and is_inside(module, self._inside)

    def _put_sheet(
        self, sheets: Sheets, step: int, kind: Kind, entries: Sequence[OwnTensor], written: Written
    ) -> None:
        sheet, slot = sheets.put(kind, entries)
        item = SheetItem(sheet, slot, step, self._sequence + 1)
        self._sequence += len(entries)
        self._outbox.put_sheet(item)
        written.sheets.append(item)


def dense_rows(
    local: torch.Tensor, sent: Iterable[SentTokens]
) -> Iterator[tuple[SentTokens, torch.Tensor]]:
    """Tokens that other ranks sent here, as one dense tensor for each of these ranks.

    It has the rows that they sent, where they stood; all others are zero.
    """
    for part in sent:
        dense = local.new_zeros(part.layout.local_shape)
        flat = dense.view(-1, *local.shape[1:])
        flat[part.places.to(local.device)] = local[part.rows.to(local.device)]
        yield part, dense


def as_kept(
    record: Record, values: torch.Tensor, kept: Quantised | None, boundary: BoundarySpec | None
) -> tuple[Record, torch.Tensor]:
    """The record of a quantised tensor, and the bytes of its codes and scales.

    The record and its values as they are where it is not kept so, or where the record groups its
    elements otherwise.
    """
    if kept is None:
        return record, values
    if boundary is not None and boundary.dims:
        kept = kept.permuted(boundary.dims)
    if kept.codes.shape != record.shape:
        return record, values
    return record.stored_as(kept.described()), kept.packed()


class Costs:
    """What recording took of the last step, of which whoever records adds up the `seconds`.

    A step may be written while the next one runs; its bytes are those by which the trace grew since
    the one before it was written.
    """

    def __init__(self, outbox: Outbox, writer: TraceWriter) -> None:
        self.seconds = 0.0  # in the threads of the run: hooks, and the end of the step
        self.bytes_written = 0
        self._outbox = outbox
        self._writer = writer
        self._waited_before = 0.0
        self._bytes_before = writer.size_bytes

    def begin(self) -> None:
        self.seconds, self._waited_before = 0.0, self._outbox.waited_seconds

    def end(self) -> None:
        """All of a step is in the trace."""
        size_bytes = self._writer.size_bytes
        self.bytes_written = size_bytes - self._bytes_before
        self._bytes_before = size_bytes

    @property
    def waited_seconds(self) -> float:
        """Of these, for memory that was not written yet."""
        return self._outbox.waited_seconds - self._waited_before
