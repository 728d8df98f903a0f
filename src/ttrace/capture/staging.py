"""From a GPU to the host without waiting for either: a ring on the device, then a pinned one.

    the current stream    tensor -> ring on the device     the tensor may change after that
    a side stream                   ring -> pinned memory  as fast as the link
    a writer                                waits for the event behind that, and writes

Enters: tensors of one GPU, in a hook. Leaves: portions whose bytes come later. The host waits only
where pinned memory is full; where the stage is full, the stream does. No stream is synchronised.
It must not know records, files or threads.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Protocol

import torch

from ttrace.capture.memory import HostMemory, Portion, copy_into, pieces
from ttrace.capture.ring import Ring, Stretch
from ttrace.trace.arena import Ready

# Chosen: a dozen large tensors, each of which one thread hashes while the link brings the next.
PINNED_BYTES = 1536 << 20
_SHARE = 100  # of the device's allocated memory: the stage takes one such part of it
_LEAST_BYTES = 8 << 20  # chosen: below this a copy costs less than its launch
_MOST_BYTES = 256 << 20  # chosen: 5 ms of the link; a longer pause of the run is seldom
_PORTIONS = 4  # chosen: one is filled and one is fetched while others wait
_LOOKS_AFTER = 64  # chosen: stages filled, before it looks whether the run has grown


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
