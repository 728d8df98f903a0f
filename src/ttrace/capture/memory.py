"""Memory between hooks and those who write: bounded, so that whoever is faster waits.

    a tensor of the CPU    -> copied into a ring of host memory
    a tensor of a GPU      -> copied into a ring on the device, and from there into pinned memory
    any other              -> brought to the CPU first

From a GPU to the host it goes without waiting for either:

    the current stream    tensor -> ring on the device     the tensor may change after that
    a side stream                   ring -> pinned memory  as fast as the link
    a writer                                waits for the event behind that, and writes

Enters: tensors on any device, in a hook. Leaves: portions of bytes that later changes of the tensor
do not reach, and that may come later. The host waits only where its ring is full; where the one on
the device is full, the stream does. No stream is synchronised. It must not know records, files or
threads.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Generic, Protocol, TypeVar

import torch

from ttrace.trace.arena import Ready
from ttrace.trace.payload import flat_bytes

_ALIGNMENT = 64  # a cache line; every dtype's items start at a multiple of their size
_T = TypeVar("_T")
# Chosen: eight tensors of the least size that is handed over.
HOST_BYTES = 32 << 20
# Chosen: portions of a ring. Of a tensor that is larger than one, one is filled and one is fetched
# or written while others wait.
_PORTIONS = 4
LOOKS_S = 0.1  # chosen: how often somebody who waits looks whether anybody still works
# Chosen: a dozen large tensors, each of which one thread hashes while the link brings the next.
PINNED_BYTES = 1536 << 20
_SHARE = 100  # of the device's allocated memory: the stage takes one such part of it
_LEAST_BYTES = 8 << 20  # chosen: below this a copy costs less than its launch
_MOST_BYTES = 256 << 20  # chosen: 5 ms of the link; a longer pause of the run is seldom
_LOOKS_AFTER = 64  # chosen: stages filled, before it looks whether the run has grown


class Stretch(Generic[_T]):
    """Bytes start : stop of a ring; `mark` is for who takes them."""

    __slots__ = ("is_free", "mark", "start", "stop")

    def __init__(self, start: int, stop: int) -> None:
        self.start = start
        self.stop = stop
        self.is_free = False
        self.mark: _T | None = None


class Ring(Generic[_T]):
    """Stretches in the order in which they were taken and are used again; freed in any.

    | free | oldest | ... | latest | free |        | latest | free | oldest | ... |
    """

    def __init__(self, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._taken: deque[Stretch[_T]] = deque()
        self._end = 0  # of the latest

    @property
    def oldest(self) -> Stretch[_T] | None:
        return self._taken[0] if self._taken else None

    def take(self, size_bytes: int) -> Stretch[_T] | None:
        """So many bytes in a row; None where others must be freed before."""
        start = self._place(size_bytes)
        if start is None:
            return None
        stretch: Stretch[_T] = Stretch(start, start + size_bytes)
        self._end = start + size_bytes + -size_bytes % _ALIGNMENT
        self._taken.append(stretch)
        return stretch

    def free(self, stretch: Stretch[_T]) -> None:
        stretch.is_free = True
        while self._taken and self._taken[0].is_free:
            self._taken.popleft()

    def _place(self, size_bytes: int) -> int | None:
        if not 0 < size_bytes <= self.size_bytes:
            raise ValueError(f"{size_bytes} bytes of a ring of {self.size_bytes}")
        if not self._taken:
            return 0  # memory that was used lately is the fastest
        oldest = self._taken[0].start
        if self._end <= oldest:  # it went around: there is room between latest and oldest only
            return self._end if self._end + size_bytes <= oldest else None
        if self._end + size_bytes <= self.size_bytes:
            return self._end
        return 0 if size_bytes <= oldest else None


class Stalled(Exception):
    """There is no room, and nobody left who would make some."""


class Portion:
    """Some bytes of a tensor in a ring; they are there once `data` returns, and until `free`."""

    __slots__ = ("_memory", "_ready", "_stretch")

    def __init__(self, memory: HostMemory, stretch: Stretch[None], ready: Ready | None) -> None:
        self._memory = memory
        self._stretch = stretch
        self._ready = ready

    def data(self) -> memoryview:
        if self._ready is not None:
            self._ready.synchronize()
        return self._memory.bytes[self._stretch.start : self._stretch.stop]

    def free(self) -> None:
        self._memory.free(self._stretch)


class HostMemory:
    """A ring of host memory. `is_emptied` says whether anybody still frees what is taken."""

    def __init__(
        self,
        size_bytes: int,
        is_emptied: Callable[[], bool],
        *,
        is_pinned: bool = False,
    ) -> None:
        with torch.inference_mode(mode=False):  # else it could only be filled in that mode
            self.tensor = torch.empty(
                size_bytes, dtype=torch.uint8, device="cpu", pin_memory=is_pinned
            )
        self.bytes = self.tensor.numpy().data
        self.portion_bytes = size_bytes // _PORTIONS
        self.waited_seconds = 0.0
        self._ring: Ring[None] = Ring(size_bytes)
        self._freed = threading.Condition()
        self._is_emptied = is_emptied

    def take(self, size_bytes: int) -> Stretch[None]:
        """Waits for room; Stalled where nobody makes it."""
        with self._freed:
            stretch = self._ring.take(size_bytes)
            if stretch is not None:
                return stretch
            start = time.perf_counter()
            try:
                while (stretch := self._ring.take(size_bytes)) is None:
                    if not self._is_emptied():
                        raise Stalled
                    self._freed.wait(LOOKS_S)
            finally:
                self.waited_seconds += time.perf_counter() - start
            return stretch

    def free(self, stretch: Stretch[None]) -> None:
        with self._freed:
            self._ring.free(stretch)
            self._freed.notify()

    @contextmanager
    def freed_after_a_fault(self, stretch: Stretch[None]) -> Iterator[None]:
        """While open, nobody else would free it."""
        try:
            yield
        except BaseException:
            self.free(stretch)
            raise

    def portions(self, tensor: torch.Tensor) -> Iterator[Portion]:
        """The bytes of a CPU tensor in row-major order."""
        for piece in pieces(tensor, self.portion_bytes):
            stretch = self.take(piece.nbytes)
            with self.freed_after_a_fault(stretch):
                copy_into(self.tensor[stretch.start : stretch.stop], piece)
                portion = Portion(self, stretch, None)
            yield portion

    def portions_of(self, data: memoryview) -> Iterator[Portion]:
        """The same of bytes."""
        data = data.cast("B")
        for start in range(0, data.nbytes, self.portion_bytes):
            part = data[start : start + self.portion_bytes]
            stretch = self.take(part.nbytes)
            with self.freed_after_a_fault(stretch):
                self.bytes[stretch.start : stretch.stop] = part
                portion = Portion(self, stretch, None)
            yield portion


def copy_into(room: torch.Tensor, piece: torch.Tensor) -> None:
    """Copy a tensor into as many bytes of memory of any device, in row-major order."""
    if piece.is_contiguous():
        room.copy_(flat_bytes(piece), non_blocking=True)
    else:
        room.view(piece.dtype).view(piece.shape).copy_(piece, non_blocking=True)


def pieces(tensor: torch.Tensor, most_bytes: int) -> Iterator[torch.Tensor]:
    """Cut a tensor into parts that are none of them larger, and in row-major order as it is."""
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if 0 < tensor.nbytes <= most_bytes:
        yield tensor
    elif tensor.is_contiguous():
        yield from flat_bytes(tensor).split(most_bytes) if tensor.nbytes else ()
    else:
        row_bytes = tensor.nbytes // len(tensor)
        if row_bytes <= most_bytes:
            yield from tensor.split(most_bytes // row_bytes)
        else:
            for row in tensor:
                yield from pieces(row, most_bytes)


class Device(Protocol):
    """What staging asks of a GPU; every call returns at once."""

    def allocated_bytes(self) -> int: ...

    def empty(self, size_bytes: int) -> torch.Tensor: ...

    def stage(self, piece: torch.Tensor, room: torch.Tensor, after: Ready | None) -> object:
        """Copy on the current stream, once `after` came; an event behind that."""

    def fetch(self, room: torch.Tensor, staged: object, host: torch.Tensor) -> Ready:
        """Copy to the host on a side stream, once `staged` came; an event behind that."""


class Staging:
    """The ring on the device. All of it is bookkeeping: who may use which bytes after which event.

    Hosts wait for room in `pinned`, which writers empty.
    """

    def __init__(self, device: Device, pinned: HostMemory) -> None:
        self._device = device
        self.pinned = pinned
        self._behind: Ready | None = None  # the event of the latest bytes that are used again
        self._make()

    def portions(self, tensor: torch.Tensor) -> Iterator[Portion]:
        """The bytes of a tensor in row-major order."""
        if self._filled > _LOOKS_AFTER * self._ring.size_bytes:
            self._grow()
        for piece in pieces(tensor, self._portion_bytes):
            host = self.pinned.take(piece.nbytes)
            with self.pinned.freed_after_a_fault(host):
                portion = self._sent(piece, host)
            yield portion

    def _sent(self, piece: torch.Tensor, host: Stretch[None]) -> Portion:
        stretch = self._take(piece.nbytes)
        room = self._room[stretch.start : stretch.stop]
        staged = self._device.stage(piece, room, self._behind)
        stretch.mark = self._device.fetch(room, staged, self.pinned.tensor[host.start : host.stop])
        self._filled += piece.nbytes
        return Portion(self.pinned, host, stretch.mark)

    def _take(self, size_bytes: int) -> Stretch[Ready]:
        """Bytes that are free once `_behind` came: the event of the last that had them.

        Whichever stream takes bytes waits for it, since another one may have waited before.
        """
        while (stretch := self._ring.take(size_bytes)) is None:
            oldest = self._ring.oldest
            assert oldest is not None
            self._behind = oldest.mark or self._behind
            self._ring.free(oldest)
        return stretch

    def _make(self) -> None:
        size_bytes = _size_for(self._device.allocated_bytes())
        self._room = self._device.empty(size_bytes)
        self._ring: Ring[Ready] = Ring(size_bytes)
        self._portion_bytes = min(size_bytes // _PORTIONS, self.pinned.portion_bytes)
        self._behind = None
        self._filled = 0

    def _grow(self) -> None:
        """Where the run took more memory since: before it has activations it is small."""
        self._filled = 0
        if _size_for(self._device.allocated_bytes()) >= 2 * self._ring.size_bytes:
            self._make()


def _size_for(allocated_bytes: int) -> int:
    size_bytes = min(max(allocated_bytes // _SHARE, _LEAST_BYTES), _MOST_BYTES)
    return size_bytes // _LEAST_BYTES * _LEAST_BYTES


class CudaDevice:
    """A GPU as torch.cuda shows it: all calls of torch.cuda are here."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._side = torch.cuda.Stream(device)

    def allocated_bytes(self) -> int:
        return torch.cuda.memory_allocated(self._device)

    def empty(self, size_bytes: int) -> torch.Tensor:
        with torch.inference_mode(mode=False):
            room = torch.empty(size_bytes, dtype=torch.uint8, device=self._device)
        room.record_stream(self._side)  # when it is dropped, its memory waits for that stream
        return room

    def stage(self, piece: torch.Tensor, room: torch.Tensor, after: Ready | None) -> Any:
        if torch.cuda.is_current_stream_capturing():
            raise RuntimeError("a CUDA graph is being captured: its tensors hold no values yet")
        stream = torch.cuda.current_stream(self._device)
        if isinstance(after, torch.cuda.Event):
            stream.wait_event(after)
        copy_into(room, piece)
        return stream.record_event()

    def fetch(self, room: torch.Tensor, staged: Any, host: torch.Tensor) -> Ready:
        self._side.wait_event(staged)
        with torch.cuda.stream(self._side):
            host.copy_(room, non_blocking=True)
            there = torch.cuda.Event(blocking=True)  # who waits for it sleeps
            there.record(self._side)
        return there
