"""Writes tensors as records, each object once, and keeps every fault away from the training run.

A tensor that is one module's output and the next one's input is stored once; so is its gradient.
Values are written before the hook returns, so later in-place changes cannot reach them.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, replace

import torch
import xxhash

from ttrace.adapters.base import Adapter, BoundarySpec
from ttrace.capture.guard import Guard
from ttrace.capture.objects import ObjectMemory
from ttrace.core.ids import TensorId, is_inside
from ttrace.core.layout import Layout
from ttrace.core.record import Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.payload import FULL, Payload
from ttrace.trace.payloads import payload_for
from ttrace.trace.writer import TraceWriter


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
        self._values: ObjectMemory[Record] = ObjectMemory()
        self._broken = False
        self.is_muted = False  # in steps that are let pass
        self.seconds = 0.0  # that writing took in this step
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
    ) -> Record | None:
        """Record a tensor; `layout` or the boundary's is used where it does not know its own.

        `is_whole`: all of its values, whatever form the run asks for.
        """
        if self._broken or self.is_muted:
            return None
        if sequence is None:
            sequence = self.next_sequence()
        when = _Moment(sequence=sequence, microbatch=microbatch, recompute=recompute)
        start = time.perf_counter()
        try:
            is_whole = is_whole or is_inside(id.module, self._inside)
            asked = FULL if is_whole else self._payload
            return self._take(id, tensor, when, layout, boundary, asked)
        finally:
            self.seconds += time.perf_counter() - start

    def _take(
        self,
        id: TensorId,  # noqa: A002
        tensor: torch.Tensor,
        when: _Moment,
        layout: Layout | None,
        boundary: BoundarySpec | None,
        asked: Payload,
    ) -> Record | None:
        local, own_layout = self._adapter.to_local(tensor)
        if boundary is not None and boundary.rows:
            self._sent(id, local.cpu(), boundary, when)
            return None
        if boundary is not None:
            local = local.permute(boundary.dims) if boundary.dims else local
            layout = boundary.layout
        payload = payload_for(local, asked)
        local = local if payload.on_device else local.cpu()
        if own_layout is None and layout is not None and _fits(layout, local):
            own_layout, local = layout, local.reshape(layout.local_shape)
        batch_dim = None if boundary is None else boundary.batch_dim
        record = self._record(id, local, when, layout=own_layout, batch_dim=batch_dim)
        known = self._values.find(tensor)
        if known is not None and _is_same_sum(known, id, layout):
            _, data = payload.encode(record, local)
            if _holds(known, data):
                return self._note(_again(known, record))
        written = self._write(record, local, payload)
        if written is not None:
            self._values.keep(tensor, written)
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
        if not (self._broken or self.is_muted):
            when = _Moment(sequence=self.next_sequence(), microbatch=microbatch)
            self._note(self._record(id, tensor, when, same_as=same_as))

    def end_step(self) -> None:
        self._values.clear()

    def mark_step(self, number: int) -> None:
        """Say in the trace that all of a step is there; not after something of it was lost."""
        if not self._broken and not self.guard.faults():
            self._writer.end_step(number)

    @property
    def has_room(self) -> bool:
        """Whether another step like those before fits into what the trace may take."""
        return self._writer.has_room

    def withdraw(self) -> None:
        self._writer.withdraw()

    def abandon(self) -> None:
        """Leave the trace as it is, without an end: it never looks whole."""
        self._writer.abandon()

    def close(self, summary: Summary) -> None:
        try:
            self._writer.close(replace(summary, faults=self.guard.faults()))
        except OSError as error:
            self.guard.lost("the end of the trace", error)
        finally:
            self._writer.abandon()

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
            shape=tuple(local.shape),
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
        """Record tokens that other ranks sent here, as one dense tensor for each of these ranks."""
        for part in boundary.rows:
            dense = local.new_zeros(part.layout.local_shape)
            flat = dense.view(-1, *local.shape[1:])
            flat[part.places.cpu()] = local[part.rows.cpu()]
            record = self._record(
                id_,
                dense,
                when,
                layout=part.layout,
                batch_dim=boundary.batch_dim,
                origin=part.origin,
            )
            self._write(record, dense, payload_for(dense, self._payload))

    def _write(self, record: Record, local: torch.Tensor, payload: Payload) -> Record | None:
        try:
            return self._writer.write(record, local, payload)
        except OSError as error:
            self._stop(record, error)
            return None

    def _note(self, record: Record) -> Record | None:
        try:
            self._writer.note(record)
        except OSError as error:
            self._stop(record, error)
            return None
        return record

    def _stop(self, record: Record, error: OSError) -> None:
        self._broken = True
        self.guard.stopped(str(record.id), error)


def _again(known: Record, met: Record) -> Record:
    """The record of a tensor that is met again, under the bytes that it has already."""
    return replace(
        known,
        id=met.id,
        sequence=met.sequence,
        microbatch=met.microbatch,
        recompute=met.recompute,
        same_as=known.same_as or known.id,
    )


def _fits(layout: Layout, local: torch.Tensor) -> bool:
    return math.prod(layout.local_shape) == local.numel()


def _holds(record: Record, data: memoryview) -> bool:
    """Whether the bytes are still those of the record.

    Collectives, fused optimizers and writes through `.data` change a tensor behind autograd's back.
    """
    digest: str = xxhash.xxh3_64_hexdigest(data)
    return record.location is not None and record.location.xxh3 == digest


def _is_same_sum(record: Record, id_: TensorId, layout: Layout | None) -> bool:
    """Whether a tensor that is met again is a term of the same sum over ranks as it was before.

    A gradient that should be summed by now is another tensor, even if nothing changed it. An
    activation that is met again without a layout keeps the layout that its first record has.
    """
    known = () if record.layout is None else record.layout.partial
    if layout is None:
        return id_.kind.is_activation or not known
    return layout.partial == known
