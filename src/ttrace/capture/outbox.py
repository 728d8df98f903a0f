"""The outbox: what hooks hand over, on its way into the trace while training goes on.

Enters: records with their tensors, in the order of the calls. Leaves: their bytes in the trace,
and then their lines in its journal, in that order. Values are fixed when `put` returns: later
changes of a tensor do not reach them. Threads work from the first record until the next `flush`;
between steps there is none. It must not know hooks, frameworks, or what a fault means to a run.
"""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from functools import partial
from queue import SimpleQueue

import torch

from ttrace.capture.items import Item, Repeat, Sent, Unwritten
from ttrace.capture.memory import HOST_BYTES, HostMemory, Portion
from ttrace.capture.staging import PINNED_BYTES, CudaDevice, Staging
from ttrace.capture.writers import Writers
from ttrace.core.record import Record
from ttrace.trace.arena import Arena
from ttrace.trace.payload import FULL, Later, Payload, tensor_bytes
from ttrace.trace.writer import TraceWriter

_CUDA = "cuda"
# Measured on two cores, in CPU time: handing 0.3 MB over costs more than writing it, and of 4 MB no
# more. What is smaller is written in the hook, as is everything of a process that ends.
_HANDED_BYTES = 4 << 20
_SMALL_BYTES = 1 << 16  # chosen: a copy inside of a GPU takes no longer than its launch
_WRITERS = 1  # measured on two cores: a second one is no faster, only one at a time runs Python
_CUDA_WRITERS = 4  # chosen: one thread hashes 20 GB/s and more, a link brings 55


class Outbox:
    """Between the recorder of a rank and its trace. Hooks may call it from several threads.

    A child that was forked in a step begins with an empty one.
    """

    _process: int
    _lock: threading.Lock  # one hook at a time: rings are filled in order
    _writers: Writers | None
    _host: HostMemory | None
    _staged: dict[torch.device, Staging]
    _arenas: dict[torch.device, Arena]  # for small tensors
    _flushed_seconds: float

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._renew()

    @property
    def is_broken(self) -> bool:
        """Whether it takes nothing more; `flush` says why."""
        return self._writers is not None and self._writers.is_broken

    @property
    def waited_seconds(self) -> float:
        """That hooks waited for memory, and `flush` for the last bytes."""
        staged = (staging.pinned for staging in self._staged.values())
        memories = (*staged, *(() if self._host is None else (self._host,)))
        return self._flushed_seconds + sum(memory.waited_seconds for memory in memories)

    def note(self, record: Record) -> None:
        """Hand over a record that has no bytes."""
        with self._lock_here():
            self._working().write(Item(record))

    def put(
        self,
        record: Record,
        tensor: torch.Tensor,
        payload: Payload = FULL,
        repeat: Repeat | None = None,
    ) -> Sent:
        """Hand over a record with its tensor, whose elements its shape may group otherwise."""
        source: torch.Tensor | memoryview | Later = tensor
        known = None if payload is FULL or repeat is None else repeat.encoded(record)
        if known is not None:
            record, source = known
        elif payload is not FULL:
            tensor = (tensor if payload.on_device else tensor.cpu()).reshape(record.shape)
            record, source = payload.encode(record, tensor)
        item = Item(record, repeat)
        with self._lock_here():
            if isinstance(source, torch.Tensor) and _is_small(source):
                source = self._arena(source.device).copy(source)
            if isinstance(source, torch.Tensor | memoryview):
                self._fill(item, source)
            else:
                item.later = item.sent.later = source
                item.sent.encoded = record
                self._working().hand(item)
        return item.sent

    def flush(self) -> list[Unwritten]:
        """Return when all that was put is in the trace; what is not, with the reason."""
        with self._lock_here():
            start = time.perf_counter()
            writers = self._writers
            if writers is None:
                return []
            try:
                writers.end()
            finally:
                self._flushed_seconds += time.perf_counter() - start
            self._writers = None
            for arena in self._arenas.values():
                arena.end_step()
            return writers.lost

    def close(self) -> list[Unwritten]:
        """The same, and give all memory back."""
        lost = self.flush()
        self._host = None
        self._staged.clear()
        self._arenas.clear()
        return lost

    def _renew(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._writers, self._host, self._staged, self._arenas = None, None, {}, {}
        self._flushed_seconds = 0.0

    def _lock_here(self) -> threading.Lock:
        if os.getpid() != self._process:  # threads, and who held the lock, are the parent's
            self._renew()
        return self._lock

    def _working(self) -> Writers:
        if self._writers is None:
            self._writers = Writers(self._writer)
        return self._writers

    def _fill(self, item: Item, source: torch.Tensor | memoryview) -> None:
        """Copy the bytes, and hand the item over with the first: there may be no room for all.

        What is written sooner than handed over is written here, and only its line may wait.
        """
        writers, threads = self._working(), _threads_for(source)
        if not (threads and writers.start(threads)):
            item.later = partial(_bytes_of, source)
            writers.write(item)
            return
        item.size_bytes, item.portions = source.nbytes, SimpleQueue()
        portions, is_handed = item.portions, False
        try:
            for portion in self._portions(source):
                portions.put(portion)
                if not is_handed:
                    writers.hand(item)
                    is_handed = True
        except BaseException:
            item.is_void = True
            raise
        finally:
            portions.put(None)
            if item.is_void and not is_handed:
                item.drop()
        if not is_handed:
            writers.hand(item)

    def _portions(self, source: torch.Tensor | memoryview) -> Iterator[Portion]:
        if isinstance(source, memoryview):
            return self._host_memory().portions_of(source)
        if source.device.type != _CUDA:
            return self._host_memory().portions(source.cpu())
        staging = self._staged.get(source.device)
        if staging is None:
            pinned = HostMemory(PINNED_BYTES, self._is_emptied, is_pinned=True)
            staging = Staging(CudaDevice(source.device), pinned)
            self._staged[source.device] = staging
        return staging.portions(source)

    def _arena(self, device: torch.device) -> Arena:
        if device not in self._arenas:
            self._arenas[device] = Arena(device)
        return self._arenas[device]

    def _host_memory(self) -> HostMemory:
        if self._host is None:
            self._host = HostMemory(HOST_BYTES, self._is_emptied)
        return self._host

    def _is_emptied(self) -> bool:
        return self._writers is not None and self._writers.is_alive()


def _is_small(source: torch.Tensor) -> bool:
    return source.is_cuda and source.nbytes <= _SMALL_BYTES


def _threads_for(source: torch.Tensor | memoryview) -> int:
    if isinstance(source, torch.Tensor) and source.device.type == _CUDA:
        return _CUDA_WRITERS
    return _WRITERS if source.nbytes >= _HANDED_BYTES else 0


def _bytes_of(source: torch.Tensor | memoryview) -> memoryview:
    return source if isinstance(source, memoryview) else tensor_bytes(source.cpu())
