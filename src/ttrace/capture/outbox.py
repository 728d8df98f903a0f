"""The outbox: what hooks hand over, on its way into the trace while training goes on.

Enters: records with their tensors, in the order of the calls. Leaves: their bytes in the trace,
and then their lines in its journal, in that order. Values are fixed when `put` returns: later
changes of a tensor do not reach them. Threads work from the first record until the next `flush`, or
until all of a step is written: what a device still computes when a step ends is written while the
next one runs. It must not know hooks, frameworks, or what a fault means to a run.
"""

from __future__ import annotations

import functools
import os
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from queue import SimpleQueue

import torch

from ttrace.capture.items import SMALL_BYTES, Item, Repeat, Sent, SheetItem, Unwritten
from ttrace.capture.memory import HOST_BYTES, PINNED_BYTES, CudaDevice, HostMemory, Portion, Staging
from ttrace.capture.writers import Behind, Writers
from ttrace.core.record import Record
from ttrace.core.simulated import is_simulated
from ttrace.trace.arena import Slot
from ttrace.trace.gpu import Arenas
from ttrace.trace.payload import FULL, Later, Payload, tensor_bytes
from ttrace.trace.writer import TraceWriter

_CUDA = "cuda"
# Measured on two cores, in CPU time: handing 0.3 MB over costs more than writing it, and of 4 MB no
# more. What is smaller is written in the hook, as is everything of a process that ends.
_HANDED_BYTES = 4 << 20
_WRITERS = 1  # measured on two cores: a second one is no faster, only one at a time runs Python
_MOST_CUDA_WRITERS = 12  # measured: one hashes 6 GB/s of pinned memory, and a link brings 55
_LEAST_CUDA_WRITERS = 4


class Outbox:
    """Between the recorder of a rank and its trace. Hooks may call it from several threads.

    A child that was forked in a step begins with an empty one.
    """

    _process: int
    _lock: threading.Lock  # one hook at a time: rings are filled in order
    _writers: Writers | None
    _host: HostMemory | None
    _staged: dict[torch.device, Staging]
    _arenas: Arenas  # for small tensors
    _behind: Behind | None  # the step before, as long as it is not in the trace
    _waits: bool  # whether a device still computes something of this step
    _lost: list[Unwritten]  # and not told yet
    _flushed_seconds: float

    def __init__(self, writer: TraceWriter) -> None:
        self._writer = writer
        self._renew()

    @property
    def is_broken(self) -> bool:
        """Whether it takes nothing more; `flush` says why."""
        behind = self._behind is not None and self._behind.is_broken
        return behind or (self._writers is not None and self._writers.is_broken)

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
            tensor = tensor if payload.on_device else tensor.cpu()
            tensor = tensor if tensor.shape == record.shape else tensor.reshape(record.shape)
            record, source = payload.encode(record, tensor)
        item = Item(record, repeat)
        with self._lock_here():
            if isinstance(source, torch.Tensor) and _is_small(source):
                source = self._arenas.of(source).copy(source)
            if isinstance(source, torch.Tensor | memoryview):
                self._fill(item, source)
            else:
                item.later = item.sent.later = source
                item.sent.encoded = record
                self._hand_late(item)
        return item.sent

    def put_sheet(self, item: SheetItem) -> None:
        """Hand over many records whose bytes a device computes."""
        with self._lock_here():
            self._hand_late(item)

    def end_step(self, then: Callable[[bool], None]) -> list[Unwritten]:
        """All of a step was put: write it, and call `then` with whether anything of it was lost.

        Where a device is still at it, a thread does both while the run goes on. What was lost, as
        far as that is known by now.
        """
        with self._lock_here():
            self._join_behind()
            self._arenas.end_step()
            writers, waits, self._waits = self._writers, self._waits, False
            if writers is None:
                writers = self._working()
            self._behind, self._writers = Behind(writers, then), None
            if not (waits and self._behind.start()):
                self._behind.run()
                self._join_behind()
            lost, self._lost = self._lost, []
            return lost

    def flush(self) -> list[Unwritten]:
        """Return when all that was put is in the trace; what is not, with the reason."""
        with self._lock_here():
            start = time.perf_counter()
            try:
                self._join_behind()
                self._arenas.end_step()
                writers, self._waits = self._writers, False
                if writers is not None:
                    writers.end()
                    self._writers = None
                    self._lost += writers.lost
                if writers is not None and writers.is_broken:
                    self._forget_rings()  # some of their memory may stay taken
            finally:
                self._flushed_seconds += time.perf_counter() - start
            lost, self._lost = self._lost, []
            return lost

    def close(self) -> list[Unwritten]:
        """The same, and give all memory back."""
        lost = self.flush()
        self._forget_rings()
        self._arenas = Arenas()
        return lost

    def _forget_rings(self) -> None:
        self._host = None
        self._staged.clear()

    def _renew(self) -> None:
        self._process, self._lock = os.getpid(), threading.Lock()
        self._writers, self._host, self._staged, self._arenas = None, None, {}, Arenas()
        self._behind, self._waits = None, False
        self._lost = []
        self._flushed_seconds = 0.0

    def _lock_here(self) -> threading.Lock:
        if os.getpid() != self._process:  # threads, and who held the lock, are the parent's
            self._renew()
        return self._lock

    def _working(self) -> Writers:
        if self._writers is None:
            behind = self._behind
            is_turn = (lambda: True) if behind is None else (lambda: behind.is_done)
            self._writers = Writers(self._writer, is_turn)
        return self._writers

    def _hand_late(self, item: Item) -> None:
        self._waits |= isinstance(item.later, Slot)
        self._working().hand(item)

    def _join_behind(self) -> None:
        """Wait for the step before; nothing follows a disk that took no more of it."""
        behind = self._behind
        if behind is None:
            return
        start = time.perf_counter()
        behind.join()
        self._behind = None
        self._flushed_seconds += time.perf_counter() - start
        self._lost += behind.lost
        if behind.is_broken:
            self._forget_rings()
            self._working().is_broken = True

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
            portions.put(None)  # both a thread and this hook may come to the end of it
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

    def _host_memory(self) -> HostMemory:
        if self._host is None:
            self._host = HostMemory(HOST_BYTES, self._is_emptied)
        return self._host

    def _is_emptied(self) -> bool:
        return self._writers is not None and self._writers.is_alive()


def _is_small(source: torch.Tensor) -> bool:
    return source.is_cuda and source.nbytes <= SMALL_BYTES


def _threads_for(source: torch.Tensor | memoryview) -> int:
    if isinstance(source, torch.Tensor) and source.device.type == _CUDA:
        return _cuda_writers()
    if is_simulated():  # many ranks of a process would have as many threads and rings
        return 0
    return _WRITERS if source.nbytes >= _HANDED_BYTES else 0


@functools.cache
def _cuda_writers() -> int:
    """As many as there are cores for a process, beside its own; launchers say how many run here."""
    told = os.environ.get("LOCAL_WORLD_SIZE", "")
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count()
    share = (cores or 1) // max(1, int(told) if told.isdecimal() else 1)
    return min(max(share - 2, _LEAST_CUDA_WRITERS), _MOST_CUDA_WRITERS)


def _bytes_of(source: torch.Tensor | memoryview) -> memoryview:
    return source if isinstance(source, memoryview) else tensor_bytes(source.cpu())
