"""Simulated ranks: several ranks of a run that share one process, and what each has for itself.

A process is one rank nearly always, and what it has one of is a variable of a module. Where ranks
are simulated, each is a thread with a context of its own, and has its own value instead.
"""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from typing import Any, Generic, TypeVar

_T = TypeVar("_T")
_HERE: ContextVar[dict[Any, Any] | None] = ContextVar("simulated_rank", default=None)


def become_simulated_rank() -> None:
    """From now on this thread is a rank of its own."""
    _HERE.set({})


def is_simulated() -> bool:
    """Whether this thread is one of several ranks of its process."""
    return _HERE.get() is not None


class OfRank(Generic[_T]):
    """A variable of the process; of each rank, where the process simulates several."""

    def __init__(self, make: Callable[[], _T]) -> None:
        self._make = make
        self._of_process = make()

    def get(self) -> _T:
        values = _HERE.get()
        if values is None:
            return self._of_process
        if self not in values:
            values[self] = self._make()
        found: _T = values[self]
        return found

    def set(self, value: _T) -> None:
        values = _HERE.get()
        if values is None:
            self._of_process = value
        else:
            values[self] = value
