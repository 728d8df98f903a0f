"""Turns: ranks of one process run one at a time, until each waits for others or has ended.

Enters: for what a rank waits, as a question that others may ask. Leaves: the rank goes on when the
answer is yes. That nobody can go on is seen at once, and said with what each rank waits for. It
must not know what a rank does.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

_SHOWN = 8  # chosen: waits that are told one by one; ranks that wait for the same are one


class Abandoned(BaseException):
    """Another rank failed; raised where this one waits. Not an Exception: scripts catch those."""


@dataclass(frozen=True, slots=True)
class Wait:
    """What a rank waits for."""

    is_over: Callable[[], bool]
    say: Callable[[], str]


class Turns:
    """One turn goes around among ranks."""

    def __init__(self, count: int, aside: Callable[[], AbstractContextManager[None]]) -> None:
        """`aside()` is open while the rank has no turn; both ends run in its thread."""
        self._aside = aside
        self._arrived = threading.Semaphore(0)
        self._called = [threading.Semaphore(0) for _ in range(count)]
        self._waits: list[Wait | None] = [None] * count
        self._is_left = [True] * count
        self._running = 0
        self._is_stopped = False
        self.deadlock: str | None = None
        self.all_ended = threading.Event()

    @property
    def running(self) -> int:
        """The rank that has the turn."""
        return self._running

    def start(self) -> None:
        """Give rank 0 the turn, once the threads of all ranks are there."""
        for _ in self._called:
            self._arrived.acquire()
        self._called[0].release()

    def begin(self, rank: int) -> None:
        """The first lines of the thread of a rank: wait for its first turn."""
        with self._aside():
            self._arrived.release()
            self._called[rank].acquire()
        self._require_all_well()

    def wait(self, wait: Wait) -> None:
        """Return when it is over; until then others have their turns."""
        self._require_all_well()
        rank = self._running
        if wait.is_over():
            return
        self._waits[rank] = wait
        with self._aside():
            self._pass_on(rank)
            self._called[rank].acquire()
        self._waits[rank] = None
        self._require_all_well()

    def end(self, rank: int) -> None:
        """The last line of the thread of a rank."""
        self._is_left[rank] = False
        if any(self._is_left):
            self._pass_on(rank)
        else:
            self.all_ended.set()

    def stop(self) -> None:
        """A rank failed: the others end where they wait."""
        self._is_stopped = True

    def _require_all_well(self) -> None:
        if self._is_stopped:
            raise Abandoned("another rank failed")

    def _pass_on(self, rank: int) -> None:
        following = self._next_after(rank)
        if following is None:
            self.deadlock = self._said()
            self.stop()
            following = self._is_left.index(True)
        self._running = following
        self._called[following].release()

    def _next_after(self, rank: int) -> int | None:
        count = len(self._waits)
        for following in ((rank + 1 + step) % count for step in range(count)):
            wait = self._waits[following]
            if self._is_left[following] and (self._is_stopped or wait is None or wait.is_over()):
                return following
        return None

    def _said(self) -> str:
        """Who waits for what; ranks that say the same are told together."""
        ranks: dict[str, list[int]] = {}
        for rank, wait in enumerate(self._waits):
            if self._is_left[rank] and wait is not None:
                ranks.setdefault(wait.say(), []).append(rank)
        ended = [rank for rank, is_left in enumerate(self._is_left) if not is_left]
        lines = [f"{told(who)} in {what}" for what, who in ranks.items()]
        if len(lines) > _SHOWN:
            lines[_SHOWN:] = [f"and {len(lines) - _SHOWN} more"]
        if ended:
            lines.append(f"{told(ended)} returned")
        return "no rank can go on: " + "; ".join(lines)


def told(ranks: list[int]) -> str:
    """Rank 3; ranks 0-2, 5."""
    runs: list[list[int]] = []
    for rank in sorted(ranks):
        if runs and rank == runs[-1][-1] + 1:
            runs[-1].append(rank)
        else:
            runs.append([rank])
    names = ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs)
    return f"rank{'s' if len(ranks) > 1 else ''} {names}"
