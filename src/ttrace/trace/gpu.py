"""A GPU as an arena asks for it: all calls of torch.cuda that fingerprints need are here.

Enters: CUDA tensors, and room on their device. Leaves: fingerprints and bytes in that room, once
the stream comes to it, and copies of a room in pinned memory. Triton is imported when the first is
made.

What the programs of a pass leave lies in scratch until that is full, or the room is fetched: one
kernel then finishes the fingerprints of many tensors.
"""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import torch

from ttrace.measure.fingerprint import PrintForm
from ttrace.trace.arena import Arena, Fetched, TensorBatch
from ttrace.trace.gpu_batch import PreparedBatch, Tables
from ttrace.trace.payload import flat_bytes

_SCRATCH_BYTES = 4 << 20  # chosen: of a hundred passes over large tensors


class Arenas:
    """One for every stream of a GPU that hooks run on."""

    def __init__(self) -> None:
        self._known: dict[tuple[torch.device, int], Arena] = {}

    def of(self, tensor: torch.Tensor) -> Arena:
        """The arena of the current stream of a tensor's device."""
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is being captured: its tensors hold no values yet")
        device = tensor.device
        # By its number, which is asked ten times as quickly as the stream itself.
        stream: int = torch._C._cuda_getCurrentRawStream(device.index)  # noqa: SLF001
        arena = self._known.get((device, stream))
        if arena is None:
            arena = self._known[device, stream] = Arena(Gpu(device))
        return arena

    def end_step(self) -> None:
        for arena in self._known.values():
            arena.end_step()


class Gpu:
    """The stream that is the current one when this is made."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._stream = torch.cuda.current_stream(device)
        self._side = torch.cuda.Stream(device)  # copies to the host, while the run goes on
        self._scratch: torch.Tensor | None = None
        self._used = 0
        self._unfinished: list[tuple[int, int, int, int]] = []
        self._ready: dict[int, _Pass] = {}  # by the id of its form, which it keeps
        self._batches: WeakKeyDictionary[TensorBatch, PreparedBatch] = WeakKeyDictionary()
        self._tables = Tables(device)

    def zeros(self, size_bytes: int) -> torch.Tensor:
        with torch.inference_mode(mode=False):
            return torch.zeros(size_bytes, dtype=torch.uint8, device=self._device)

    def fingerprint(
        self, tensor: torch.Tensor, form: PrintForm, room: torch.Tensor, at: int
    ) -> None:
        address, into = tensor.data_ptr(), room.data_ptr() + at
        ready = self._ready.get(id(form))
        if ready is None:
            ready = self._ready[id(form)] = _Pass(form)
        if self._device.index == torch._C._cuda_getDevice():  # noqa: SLF001  (many times as quick)
            self._pass_over(address, ready, into)
        else:
            with torch.cuda.device(self._device):
                self._pass_over(address, ready, into)

    def _pass_over(self, address: int, ready: _Pass, into: int) -> None:
        totals = self._take(ready.scratch_bytes)
        ready.queue(self._device, address, into, totals)
        counts = 0
        if ready.stretches:
            from ttrace.measure import fingerprint_triton as kernels

            counts = totals + ready.totals_bytes
            kernels.count(self._device, address, ready.form.dtype, ready.stretches, counts)
        self._unfinished.append((totals, ready.programs, counts, into))

    def copy(self, tensor: torch.Tensor, room: torch.Tensor, at: int) -> None:
        part = room[at : at + tensor.nbytes]
        part.copy_(flat_bytes(tensor), non_blocking=True)

    def batch(self, tensors: Sequence[torch.Tensor], batch: TensorBatch) -> Fetched:
        addresses = np.array([tensor.data_ptr() for tensor in tensors], dtype=np.int64)
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            known = self._batches.get(batch)
            if known is None:
                room = self.zeros(batch.size_bytes)
                known = self._batches[batch] = PreparedBatch(batch, room, self._tables)
            if known.fetched is not None:  # of the step before
                self._stream.wait_event(known.fetched)
            known.queue(addresses)
            found, known.fetched = self._copied(known.room, batch.size_bytes)
            return found

    def fetch(self, room: torch.Tensor, size_bytes: int) -> Fetched:
        with torch.cuda.device(self._device), torch.cuda.stream(self._stream):
            self._finish()
            return self._copied(room, size_bytes)[0]

    def _copied(self, room: torch.Tensor, size_bytes: int) -> tuple[Fetched, torch.cuda.Event]:
        """The bytes of a room, and the event from which on it may be filled again."""
        with torch.inference_mode(mode=False):
            host = torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)
        self._side.wait_event(self._stream.record_event())
        there = torch.cuda.Event(blocking=True)  # who waits for it sleeps
        with torch.cuda.stream(self._side):
            host.copy_(room[:size_bytes], non_blocking=True)
            there.record(self._side)
        room.record_stream(self._side)  # it may be dropped before it was read
        return Fetched(host.numpy().data, there), there

    def _empty(self, size_bytes: int) -> torch.Tensor:
        with torch.inference_mode(mode=False):
            return torch.empty(size_bytes, dtype=torch.uint8, device=self._device)

    def _take(self, size_bytes: int) -> int:
        """The address of some scratch."""
        if self._scratch is None:
            self._scratch = self._empty(_SCRATCH_BYTES)
        if self._used + size_bytes > _SCRATCH_BYTES:
            self._finish()
        start = self._scratch.data_ptr() + self._used
        self._used += size_bytes
        return start

    def _finish(self) -> None:
        if self._unfinished:
            from ttrace.measure import fingerprint_triton as kernels

            (jobs,) = self._tables.send([np.array(self._unfinished, dtype=np.int64)])
            kernels.finish_many(jobs, len(self._unfinished))
            self._unfinished.clear()
        self._used = 0


class _Pass:
    """A pass over tensors of one form, as far as it is the same each time."""

    def __init__(self, form: PrintForm) -> None:
        from ttrace.measure import fingerprint_triton as kernels

        self.form = form
        self.programs = kernels.programs_of(form.view, form.dtype, is_one_of_many=False)
        self.totals_bytes = kernels.TOTALS_BYTES * self.programs
        self.stretches = kernels.stretches_of(form.elements) if form.has_exponents else 0
        self.scratch_bytes = self.totals_bytes + (kernels.COUNTS_BYTES if self.stretches else 0)
        self._alignment = kernels.LOAD_BYTES
        self._launches: dict[bool, kernels.Launch] = {}  # by whether a tensor is aligned

    def queue(self, device: torch.device, address: int, into: int, totals: int) -> None:
        is_aligned = not address % self._alignment
        launch = self._launches.get(is_aligned)
        if launch is not None:
            launch.again(address, into + self.form.sums_at, totals)
            return
        from ttrace.measure import fingerprint_triton as kernels

        form, sums = self.form, into + self.form.sums_at
        launch = kernels.sketch(device, address, form.dtype, form.view, sums, totals)
        if launch is not None:
            self._launches[is_aligned] = launch
