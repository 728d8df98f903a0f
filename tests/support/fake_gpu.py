"""A GPU that is none: streams as lists of work, done in a random order that their events allow."""

from __future__ import annotations

import random
import threading
from collections import deque
from collections.abc import Callable

import torch

from ttrace.capture.memory import copy_into
from ttrace.trace.arena import Ready


class FakeEvent:
    """Comes when its stream gets to it; who synchronises with it lets the device work."""

    def __init__(self, gpu: FakeGpu) -> None:
        self._gpu = gpu
        self.came = False

    def synchronize(self) -> None:
        while not self.came:
            self._gpu.work()


Work = Callable[[], bool]  # False: not yet


class FakeGpu:
    """`waits`: whether streams wait for events; without that, bytes are lost, as they should be."""

    def __init__(self, seed: int = 0, *, waits: bool = True, allocated_bytes: int = 0) -> None:
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._streams: tuple[deque[Work], deque[Work]] = deque(), deque()
        self._waits = waits
        self._allocated_bytes = allocated_bytes
        self.sizes: list[int] = []

    def allocated_bytes(self) -> int:
        return self._allocated_bytes

    def empty(self, size_bytes: int) -> torch.Tensor:
        self.sizes.append(size_bytes)
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def stage(self, piece: torch.Tensor, room: torch.Tensor, after: Ready | None) -> object:
        if isinstance(after, FakeEvent):
            self._wait(0, after)
        return self.compute(lambda: copy_into(room, piece))

    def fetch(self, room: torch.Tensor, staged: object, host: torch.Tensor) -> FakeEvent:
        assert isinstance(staged, FakeEvent)
        self._wait(1, staged)
        return self._do(1, lambda: host.copy_(room))

    def compute(self, work: Callable[[], object]) -> FakeEvent:
        """What a run does on its current stream, sooner or later."""
        return self._do(0, work)

    def work(self) -> None:
        """One piece of what is to be done."""
        with self._lock:
            order = self._random.sample(self._streams, 2)
            for stream in order:
                if stream and stream[0]():
                    stream.popleft()
                    return

    def _wait(self, stream: int, event: FakeEvent) -> None:
        with self._lock:
            self._streams[stream].append(lambda: event.came or not self._waits)

    def _do(self, stream: int, work: Callable[[], object]) -> FakeEvent:
        event = FakeEvent(self)

        def done() -> bool:
            work()
            event.came = True
            return True

        with self._lock:
            self._streams[stream].append(done)
        if self._random.random() < 0.3:
            self.work()
        return event
