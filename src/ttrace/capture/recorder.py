"""Makes records of tensors, each object once, and keeps every fault away from the training run.

A tensor that is one module's output and the next one's input is stored once; so is its gradient.
Values are fixed before the hook returns, so later in-place changes cannot reach them; the outbox
writes them while training goes on.
"""

from __future__ import annotations

import math
import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from functools import partial

import torch

from ttrace.adapters.base import Adapter, BoundarySpec
from ttrace.capture.collectives import collectives_made
from ttrace.capture.guard import Guard
from ttrace.capture.items import Repeat, Sent, Unwritten
from ttrace.capture.objects import ObjectMemory
from ttrace.capture.outbox import Outbox
from ttrace.capture.repeats import is_of_layers, met_again
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


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCost:
    """What recording took of a step."""

    recording_seconds: float = 0.0  # in the threads of the run: hooks, and the end of the step
    waited_seconds: float = 0.0  # of these, for memory that was not written yet
    bytes_written: int = 0


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
        self._broken = False
        self.is_muted = False  # in steps that are let pass
        self._before = self._so_far(0.0)
        self._seconds = 0.0  # that the run spent here
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
        if sequence is None:
            sequence = self.next_sequence()
        when = _Moment(sequence=sequence, microbatch=microbatch, recompute=recompute)
        start = time.perf_counter()
        try:
            is_whole = is_whole or is_inside(id.module, self._inside)
            asked = FULL if is_whole else self._payload
            return self._take(id, tensor, when, layout, boundary, asked)
        finally:
            self._seconds += time.perf_counter() - start

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
            self._sent(id, local.cpu(), boundary, when)
            return None
        if boundary is not None:
            local = local.permute(boundary.dims) if boundary.dims else local
            layout = boundary.layout
        if own_layout is None and layout is not None and _fits(layout, local):
            own_layout = layout
        batch_dim = None if boundary is None else boundary.batch_dim
        record = self._record(id, local, when, layout=own_layout, batch_dim=batch_dim)
        payload, made, again = payload_for(local, asked), 0, None
        if local.is_cuda and payload.on_device:
            made = collectives_made()
        if (known := self._values.find(tensor)) is not None:
            sent, before = known
            is_unchanged = local.is_cuda and made == before and is_of_layers(id)
            again = Repeat(sent, partial(met_again, record, layout), is_unchanged)
        sent = self._outbox.put(record, local, payload, again)
        self._values.keep(tensor, (sent, made))
        return sent

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
        self._seconds, self._before = 0.0, self._so_far(0.0)

    def flush(self) -> None:
        """Wait until all that was recorded is in the trace, and say what could not be written."""
        start = time.perf_counter()
        self._tell(self._outbox.flush())
        self._seconds += time.perf_counter() - start

    def end_step(self) -> None:
        self._values.clear()
        self._payload.end_step()

    def mark_step(self, number: int) -> None:
        """Say in the trace that all of a step is there; not after something of it was lost."""
        self.flush()
        if not self._broken and not self.guard.faults():
            self._writer.end_step(number)

    def cost(self) -> StepCost:
        """Since the step began, until all of it is in the trace."""
        self.flush()
        return self._so_far(self._seconds, self._before)

    @property
    def has_room(self) -> bool:
        """Whether another step like those before fits into what the trace may take."""
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

    def _so_far(self, seconds: float, before: StepCost | None = None) -> StepCost:
        before = before or StepCost()
        return StepCost(
            recording_seconds=seconds,
            waited_seconds=self._outbox.waited_seconds - before.waited_seconds,
            bytes_written=self._writer.size_bytes - before.bytes_written,
        )


def _fits(layout: Layout, local: torch.Tensor) -> bool:
    return math.prod(layout.local_shape) == local.numel()
