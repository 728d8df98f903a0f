"""A disk that fails at one call: the functions of `os` that write, with a death or an error put in.

Enters: at which call what shall happen. Leaves: the list of calls, or a process that died.
"""

from __future__ import annotations

import errno
import os
import pathlib
import signal
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, NamedTuple


class Fault(Enum):
    """What happens at a call. Torn: so many of its bytes are written, then the process dies."""

    KILLED_BEFORE = "killed before a call"
    TORN_AFTER_FIRST = "killed after the first byte"
    TORN_IN_HALF = "killed after half of the bytes"
    TORN_BEFORE_LAST = "killed before the last byte"
    KILLED_AFTER = "killed after a call"
    SHORT = "half of the bytes are taken"
    FULL = "no space at one call"
    FULL_HALFWAY = "no space after half of the bytes"
    FULL_FOR_GOOD = "no space from a call on"
    BROKEN = "an error of the device at one call"
    BROKEN_TWICE = "an error of the device halfway and at the next call"


DEATHS = (
    Fault.KILLED_BEFORE,
    Fault.TORN_AFTER_FIRST,
    Fault.TORN_IN_HALF,
    Fault.TORN_BEFORE_LAST,
    Fault.KILLED_AFTER,
)
_TORN: dict[Fault, Callable[[int], int]] = {
    Fault.TORN_AFTER_FIRST: lambda size: 1,
    Fault.TORN_IN_HALF: lambda size: size // 2,
    Fault.TORN_BEFORE_LAST: lambda size: size - 1,
}
_HALVES = (Fault.SHORT, Fault.FULL_HALFWAY, Fault.BROKEN_TWICE)
_DATA = ("write", "pwrite", "pwritev")
_CALLS = (*_DATA, "open", "close", "ftruncate", "mkdir", "replace", "unlink")


class Call(NamedTuple):
    """One call to the file system; `size` is how many bytes it writes."""

    name: str
    size: int

    def can_have(self, fault: Fault) -> bool:
        if fault in _TORN or fault in _HALVES:
            return self.size > 1
        if fault in (Fault.FULL, Fault.FULL_FOR_GOOD):
            return self.size > 0 or self.name in ("open", "mkdir")
        return True


@dataclass(slots=True)
class Disk:
    """Stands between a writer and the disk, in a process that is forked for it."""

    at: int | None = None  # the number of the call that fails, or of one before it that cannot
    fault: Fault = Fault.KILLED_BEFORE
    calls: list[Call] = field(default_factory=list)
    _failed: int | None = None
    _real: dict[str, Callable[..., Any]] = field(default_factory=dict)

    def install(self) -> None:
        """From here on all calls of this process that write go through here."""
        self._real = {name: getattr(os, name) for name in _CALLS}
        for name in _CALLS:
            setattr(os, name, self._around(name))
        # Files that Python opens itself are not written by functions of `os`.
        pathlib.Path.write_bytes = _write_bytes  # type: ignore[method-assign, assignment]

    def _around(self, name: str) -> Callable[..., Any]:
        def call(*args: Any, **more: Any) -> Any:
            number = len(self.calls)
            self.calls.append(Call(name, len(_data(args)) if name in _DATA else 0))
            is_due = self.at is not None and number >= self.at
            if is_due and self._failed is None and self.calls[-1].can_have(self.fault):
                self._failed = number
                if self.fault is not Fault.FULL_FOR_GOOD:
                    return self._fail(name, args, more)
            if self._failed is not None:
                self._fail_later(number - self._failed, name, args)
            return self._real[name](*args, **more)

        return call

    def _fail(self, name: str, args: tuple[Any, ...], more: dict[str, Any]) -> Any:
        """The call at which it happens."""
        if self.fault in _TORN:
            self._partly(name, args, _TORN[self.fault](len(_data(args))))
        elif self.fault in _HALVES:
            return self._partly(name, args, len(_data(args)) // 2)
        elif self.fault is Fault.FULL:
            raise _error(errno.ENOSPC)
        elif self.fault is Fault.BROKEN:
            if name == "close":
                self._real[name](*args)  # the descriptor is gone all the same
            raise _error(errno.EIO)
        elif self.fault is Fault.KILLED_AFTER:
            self._real[name](*args, **more)
        os.kill(os.getpid(), signal.SIGKILL)
        raise AssertionError("it was killed")

    def _fail_later(self, later: int, name: str, args: tuple[Any, ...]) -> None:
        """What the same fault does to a call so many calls after that."""
        if self.fault is Fault.FULL_FOR_GOOD and self._takes_space(name, args):
            raise _error(errno.ENOSPC)
        if later == 1 and self.fault is Fault.FULL_HALFWAY and name in _DATA:
            raise _error(errno.ENOSPC)
        if later == 1 and self.fault is Fault.BROKEN_TWICE:
            raise _error(errno.EIO)

    def _partly(self, name: str, args: tuple[Any, ...], size: int) -> Any:
        fd, _, *where = args
        return self._real[name.removesuffix("v")](fd, _data(args)[:size], *where)

    def _takes_space(self, name: str, args: tuple[Any, ...]) -> bool:
        if name.startswith("pwrite"):  # what is there already may be overwritten
            return bool(args[2] + len(_data(args)) > os.fstat(args[0]).st_size)
        return name in ("write", "mkdir") or (name == "open" and bool(args[1] & os.O_CREAT))


def _data(args: tuple[Any, ...]) -> memoryview:
    """What a call writes."""
    parts = args[1] if isinstance(args[1], list) else [args[1]]
    return memoryview(b"".join(parts))


def _error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def _write_bytes(path: pathlib.Path, data: bytes) -> int:
    """As `pathlib` does it, with the functions of `os`."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
    try:
        view = memoryview(data)
        while view:
            view = view[os.write(fd, view) :]
    finally:
        os.close(fd)
    return len(data)


def written(calls: Iterable[Call]) -> int:
    """How many bytes went through the functions of `os`."""
    return sum(call.size for call in calls if call.name in _DATA)
