"""Room on disk: how many bytes a trace takes, and whether it may take more."""

from __future__ import annotations

import errno
import os


class Room:
    """What one rank may write; without a limit there is always room."""

    def __init__(self, most_bytes: int | None = None) -> None:
        self._most = most_bytes
        self.taken = 0
        self._before = 0  # taken when the last step ended
        self._largest = 0  # that a step took

    def take(self, size_bytes: int) -> None:
        self.taken += size_bytes

    def require(self, size_bytes: int) -> None:
        """OSError where so many more bytes are too many."""
        if self._most is not None and self.taken + size_bytes > self._most:
            told = f"{os.strerror(errno.EDQUOT)}: --max-bytes leaves {self._most:,} to this rank"
            raise OSError(errno.EDQUOT, told)

    def end_step(self) -> None:
        self._largest = max(self._largest, self.taken - self._before)
        self._before = self.taken

    @property
    def is_limited(self) -> bool:
        return self._most is not None

    @property
    def is_left(self) -> bool:
        """Whether another step like the largest fits."""
        return self._most is None or self.taken + self._largest <= self._most
