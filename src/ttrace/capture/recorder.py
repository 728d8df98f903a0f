"""Writes tensors as records, each object once, and keeps every fault away from the training run.

A tensor that is one module's output and the next one's input is stored once; so is its gradient.
Values are written before the hook returns, so later in-place changes cannot reach them.
"""

from __future__ import annotations

import logging
import math
from dataclasses import replace

import torch
import xxhash

from ttrace.adapters.base import Adapter, BoundarySpec
from ttrace.capture.objects import ObjectMemory
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import Record, Summary
from ttrace.trace.writer import TraceWriter, tensor_bytes

_LOG = logging.getLogger("ttrace")
_FAULTS_KEPT = 20  # arbitrary: enough to see a pattern, few enough to read


class Recorder:
    """What capture writes through."""

    def __init__(self, adapter: Adapter, writer: TraceWriter, rank: int) -> None:
        self._adapter = adapter
        self._writer = writer
        self._rank = rank
        self._sequence = 0
        self._values: ObjectMemory[Record] = ObjectMemory()
        self._broken = False
        self._faults: list[str] = []
        self._fault_count = 0

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
    ) -> Record | None:
        """Record a tensor; `layout` or the boundary's is used where it does not know its own."""
        if self._broken:
            return None
        if sequence is None:
            sequence = self.next_sequence()
        local, own_layout = self._adapter.to_local(tensor)
        local = local.cpu()
        if boundary is not None and boundary.rows:
            self._sent(id, local, boundary, sequence, microbatch=microbatch, recompute=recompute)
            return None
        if boundary is not None:
            local = local.permute(boundary.dims) if boundary.dims else local
            layout = boundary.layout
        known = self._values.find(tensor)
        if known is not None and _is_same_sum(known, id, layout) and _holds(known, local):
            shared = replace(
                known,
                id=id,
                sequence=sequence,
                microbatch=microbatch,
                recompute=recompute,
                same_as=known.same_as or known.id,
            )
            return self._write(shared, None)
        fits = layout is not None and math.prod(layout.local_shape) == local.numel()
        if own_layout is None and layout is not None and fits:
            own_layout, local = layout, local.reshape(layout.local_shape)
        record = Record(
            id=id,
            rank=self._rank,
            sequence=sequence,
            dtype=str(local.dtype).removeprefix("torch."),
            shape=tuple(local.shape),
            microbatch=microbatch,
            recompute=recompute,
            layout=own_layout,
            batch_dim=None if boundary is None else boundary.batch_dim,
        )
        written = self._write(record, local)
        if written is not None:
            self._values.keep(tensor, written)
        return written

    def _sent(
        self,
        id_: TensorId,
        local: torch.Tensor,
        boundary: BoundarySpec,
        sequence: int,
        *,
        microbatch: int,
        recompute: bool,
    ) -> None:
        """Tokens that other ranks sent here: one dense record for each of these ranks."""
        for part in boundary.rows:
            dense = local.new_zeros(part.layout.local_shape)
            flat = dense.view(-1, *local.shape[1:])
            flat[part.places.cpu()] = local[part.rows.cpu()]
            record = Record(
                id=id_,
                rank=self._rank,
                sequence=sequence,
                dtype=str(dense.dtype).removeprefix("torch."),
                shape=tuple(dense.shape),
                microbatch=microbatch,
                recompute=recompute,
                layout=part.layout,
                batch_dim=boundary.batch_dim,
                origin=part.origin,
            )
            self._write(record, dense)

    def mention(
        self,
        id: TensorId,  # noqa: A002
        tensor: torch.Tensor,
        *,
        microbatch: int,
        same_as: TensorId,
    ) -> None:
        """A gradient that is stored under another id: the tensor is the same object."""
        if self._broken:
            return
        record = Record(
            id=id,
            rank=self._rank,
            sequence=self.next_sequence(),
            dtype=str(tensor.dtype).removeprefix("torch."),
            shape=tuple(tensor.shape),
            microbatch=microbatch,
            same_as=same_as,
        )
        self._write(record, None)

    def fault(self, where: str, error: BaseException) -> None:
        """Count a fault inside a hook; the training run must not notice."""
        self._fault_count += 1
        if len(self._faults) < _FAULTS_KEPT:
            self._faults.append(f"{where}: {type(error).__name__}: {error}")
            _LOG.error("ttrace could not record %s: %s: %s", where, type(error).__name__, error)

    def end_step(self) -> None:
        self._values.clear()

    def close(self, summary: Summary) -> None:
        faults = list(self._faults)
        if self._fault_count > len(faults):
            faults.append(f"and {self._fault_count - len(faults)} more")
        try:
            self._writer.close(replace(summary, faults=tuple(faults)))
        except OSError as error:
            self.fault("the end of the trace", error)

    def next_sequence(self) -> int:
        """A place in the order of the step, for a record that may be written later."""
        self._sequence += 1
        return self._sequence

    def _write(self, record: Record, local: torch.Tensor | None) -> Record | None:
        try:
            if local is None:
                self._writer.note(record)
                return record
            return self._writer.write(record, local)
        except OSError as error:
            self._broken = True
            self.fault(f"{record.id} (recording stops here, the training run goes on)", error)
            return None


def _holds(record: Record, local: torch.Tensor) -> bool:
    """Whether the bytes are still those of the record.

    Collectives, fused optimizers and writes through `.data` change a tensor behind autograd's back.
    """
    digest: str = xxhash.xxh3_64_hexdigest(tensor_bytes(local))
    return record.location is not None and record.location.xxh3 == digest


def _is_same_sum(record: Record, id_: TensorId, layout: Layout | None) -> bool:
    """A gradient that should be summed by now is another tensor, even if nothing changed it.

    An activation of which nothing is said is what it was when something was.
    """
    known = () if record.layout is None else record.layout.partial
    if layout is None:
        return id_.kind.is_activation or not known
    return layout.partial == known
