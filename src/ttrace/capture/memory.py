"""Host memory between hooks and those who write: bounded, so that whoever is faster waits.

Enters: tensors on any device, in a hook. Leaves: portions of bytes that later changes of the tensor
do not reach. It must not know records, files or threads.

    a tensor of the CPU    -> copied into a ring of host memory
    a tensor of a GPU      -> staging.py copies it, into a ring of pinned memory
    any other              -> brought to the CPU first
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from ttrace.capture.ring import Ring, Stretch
from ttrace.trace.arena import Ready
from ttrace.trace.payload import flat_bytes

# Chosen: eight tensors of the least size that is handed over.
HOST_BYTES = 32 << 20
_PORTIONS = (
    4  # chosen: of a tensor that is larger than a ring, so that filling and emptying overlap
)
LOOKS_S = 0.1  # chosen: how often somebody who waits looks whether anybody still works


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
