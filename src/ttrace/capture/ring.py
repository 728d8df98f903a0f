"""Rings: memory of a fixed size that is handed out in order, around and around.

Enters: how many bytes are wanted. Leaves: which of the ring's bytes they are, or that there is no
room now. It must not know what the memory is, nor who waits for it.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

_ALIGNMENT = 64  # a cache line; every dtype's items start at a multiple of their size
_T = TypeVar("_T")


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
