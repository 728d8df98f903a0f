"""A GPU as an arena asks for it: all calls of torch.cuda that fingerprints need are here.

Enters: CUDA tensors, and room on their device. Leaves: fingerprints and bytes in that room, once
the stream comes to it, and copies of a room in pinned memory. Triton is imported when the first is
made.

What the programs of a pass leave lies in scratch until that is full, or the room is fetched: one
kernel then finishes the fingerprints of many tensors. The launches of a batch are prepared as far
as they stay the same; as long as its tensors stay where they are, the tables that kernels read stay
on the device, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from weakref import WeakKeyDictionary

import numpy as np
import numpy.typing as npt
import torch

from ttrace.measure.fingerprint import PrintForm
from ttrace.trace.arena import Arena, Fetched, TensorBatch
from ttrace.trace.payload import flat_bytes

_NONE = -1  # no offset
_ALIGNMENT = 16  # of every table
_HALF_BYTES = 1 << 20  # chosen: the tables of several steps
_Numbers = npt.NDArray[np.int64]


class Tables:
    """Tables on their way to a device, in pinned memory that is used again and again.

    One half of it is filled while the device may still read the other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host: torch.Tensor | None = None
        self._first, self._used = 0, 0  # of the half that is filled
        self._read: dict[int, torch.cuda.Event] = {}  # when all of a half was read

    def send(self, tables: Sequence[npt.NDArray[np.generic]]) -> list[torch.Tensor]:
        """Several at once, each as it is; they are there once the current stream comes to it."""
        starts, end = [], 0
        for table in tables:
            starts.append(end)
            end += table.nbytes + -table.nbytes % _ALIGNMENT
        host = self._take(end)
        flat = host.numpy()
        for table, start in zip(tables, starts, strict=True):
            flat[start : start + table.nbytes] = table.reshape(-1).view(np.uint8)
        with torch.inference_mode(mode=False):
            sent = torch.empty(end, dtype=torch.uint8, device=self._device)
            sent.copy_(host, non_blocking=True)
        return [
            sent[start : start + table.nbytes].view(torch.from_numpy(table[:0]).dtype)
            for table, start in zip(tables, starts, strict=True)
        ]

    def _take(self, size_bytes: int) -> torch.Tensor:
        if size_bytes > _HALF_BYTES:
            return _pinned(size_bytes)
        if self._host is None:
            self._host = _pinned(2 * _HALF_BYTES)
        if self._used + size_bytes > _HALF_BYTES:
            self._read[self._first] = torch.cuda.current_stream(self._device).record_event()
            self._first, self._used = _HALF_BYTES - self._first, 0
            if self._first in self._read:
                self._read[self._first].synchronize()  # steps ago
        start = self._first + self._used
        self._used += size_bytes + -size_bytes % _ALIGNMENT
        return self._host[start : start + size_bytes]


def _pinned(size_bytes: int) -> torch.Tensor:
    with torch.inference_mode(mode=False):
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


class PreparedBatch:
    """The launches of a batch: numbers and offsets of all that stays the same."""

    def __init__(self, batch: TensorBatch, room: torch.Tensor, tables: Tables) -> None:
        """`room` is zeros, in which it makes all of its bytes."""
        from ttrace.measure import fingerprint_triton as kernels

        self.room = room
        self.fetched: torch.cuda.Event | None = None  # when the host has what was made last
        self._tables = tables
        self._addresses: _Numbers | None = None  # for which `_sent` is
        self._sent: list[torch.Tensor] = []
        self._scratch_bytes = 0
        whole: list[tuple[int, ...]] = []
        finished: list[tuple[int, ...]] = []
        counted: dict[torch.dtype, list[tuple[int, ...]]] = defaultdict(list)
        alike: dict[object, list[tuple[int, PrintForm, int]]] = defaultdict(list)
        for number, (form, start) in enumerate(zip(batch.forms, batch.starts, strict=True)):
            if form is None:
                whole.append((number, start, batch.sizes[number]))
                continue
            programs = kernels.programs_of(form.view, form.dtype, is_one_of_many=True)
            totals, counts = self._take(kernels.TOTALS_BYTES * programs), _NONE
            stretches = kernels.stretches_of(form.elements) if form.has_exponents else 0
            if stretches:
                counts = self._take(kernels.COUNTS_BYTES)
                counted[form.dtype].append((number, counts, stretches))
            finished.append((totals, programs, counts, start))
            alike[kernels.compiled_for(form.view, form.dtype)].append((number, form, totals))
        self._whole = _columns(whole, 3)
        self._finished = _columns(finished, 4)
        self._counted = {dtype: _columns(rows, 3) for dtype, rows in counted.items()}
        self._passes = [
            (
                np.array([number for number, _, _ in some]),
                kernels.Passes(
                    [
                        (form.view, batch.starts[number] + form.sums_at, totals)
                        for number, form, totals in some
                    ],
                    some[0][1].dtype,
                ),
            )
            for some in alike.values()
        ]

        passes = [np.array([], dtype=np.int32), *(each.owners for _, each in self._passes)]
        self._owners = tables.send(passes)[1:]
        self._scratch = torch.empty(self._scratch_bytes, dtype=torch.uint8, device=room.device)

    def _take(self, size_bytes: int) -> int:
        start = self._scratch_bytes
        self._scratch_bytes += size_bytes
        return start

    def queue(self, addresses: _Numbers) -> None:
        """All of it, of tensors at these addresses."""
        from ttrace.measure import fingerprint_triton as kernels

        if self._addresses is None or not np.array_equal(addresses, self._addresses):
            self._sent = self._tables.send(self._made(addresses))
            self._addresses = addresses
        is_aligned = not (addresses % kernels.LOAD_BYTES).any()
        copies, finished, *others = self._sent
        if len(self._whole[0]):
            kernels.copy_many(copies, len(self._whole[0]))
        for (_, passes), owners in zip(self._passes, self._owners, strict=True):
            passes.queue(others.pop(0), owners, is_aligned=is_aligned)
        for dtype, (numbers, _, _) in self._counted.items():
            kernels.count_many(dtype, others.pop(0), len(numbers))
        if len(self._finished[0]):
            kernels.finish_many(finished, len(self._finished[0]))

    def _made(self, addresses: _Numbers) -> list[_Numbers]:
        """The tables of all launches, in the order in which `queue` takes them."""
        room, scratch = self.room.data_ptr(), self._scratch.data_ptr()
        numbers, starts, sizes = self._whole
        copies = np.stack([addresses[numbers], room + starts, sizes], axis=1)
        totals, programs, counts, starts = self._finished
        counts = np.where(counts == _NONE, 0, scratch + counts)
        finished = np.stack([scratch + totals, programs, counts, room + starts], axis=1)
        return [
            copies,
            finished,
            *(each.table(addresses[some], room, scratch) for some, each in self._passes),
            *(
                np.stack([addresses[some], scratch + counts, stretches], axis=1)
                for some, counts, stretches in self._counted.values()
            ),
        ]


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> _Numbers:
    return np.array(rows, dtype=np.int64).reshape(-1, count).T


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
