"""Where the tracer can fail: its functions, as the interpreter calls them in a run.

Nothing is listed: whatever function of these packages a run calls is a place. Raising is left to
the interpreter's profiler, which is told of every call before its first line, and of every return:
an exception that it raises is one of that function. So closures, properties and generators are
places as well, and the code under attack is the very code that runs.

Only functions that return None, and make nothing, also fail at their return: after others, what
comes next in the caller is a call of its own.
"""

from __future__ import annotations

import errno
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from inspect import CO_GENERATOR
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, NamedTuple

import ttrace

ROOT = Path(ttrace.__file__).parent
PACKAGES = ("adapters", "capture", "core", "integrations", "trace")

# What keeps faults from the run, and so cannot fail for it. All of it is in two files, but for
# three functions that are called by others and do nothing but call the guard.
TRUSTED_FILES = frozenset({"capture/guard.py"})
TRUSTED = frozenset(
    {
        ("adapters/patching.py", "_Once.__init__"),
        ("adapters/patching.py", "_Once.__call__"),
        ("adapters/patching.py", "unharmed"),
        ("adapters/patching.py", "patched.<locals>.run"),
        ("adapters/patching.py", "patched.<locals>.call"),
        ("adapters/patching.py", "patched.<locals>.call_of_class"),
        ("capture/attach.py", "attach"),
        ("capture/regroup/mode.py", "Regrouping.__torch_dispatch__"),
        # What a script gets where nothing is traced: it does nothing.
        ("capture/tracer.py", "OffTracer.step"),
        ("capture/tracer.py", "OffTracer.begin"),
        ("capture/tracer.py", "OffTracer.end"),
        ("capture/tracer.py", "OffTracer.loss"),
        ("capture/tracer.py", "OffTracer.as_call"),
    }
)


class Place(NamedTuple):
    """A function, by its file in the package, its name and its line."""

    file: str
    function: str
    line: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line} {self.function}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One exception at the nth call of a function, or at its nth return."""

    place: Place
    nth: int
    kind: str
    at_return: bool = False

    def __str__(self) -> str:
        when = "return" if self.at_return else "call"
        return f"{self.kind} at {when} {self.nth} of {self.place}"


_MESSAGE = "raised by attacks.faults"
KINDS: dict[str, Callable[[], Exception]] = {
    "RuntimeError": lambda: RuntimeError(_MESSAGE),
    "OSError": lambda: OSError(errno.ENOSPC, _MESSAGE),
    "MemoryError": lambda: MemoryError(_MESSAGE),
    "RecursionError": lambda: RecursionError(_MESSAGE),
}


class Counted:
    """How often a run called each function, and how often it returned None."""

    def __init__(self) -> None:
        self.calls: Counter[Place] = Counter()
        self.returns: Counter[Place] = Counter()

    @contextmanager
    def counting(self) -> Iterator[None]:
        known = cache(place_of)

        def told(frame: FrameType, event: str, value: Any) -> None:
            if event not in ("call", "return"):
                return
            code = frame.f_code
            place = known(code)
            if place is None:
                return
            if event == "call":
                self.calls[place] += 1
            elif value is None and not (code.co_flags & CO_GENERATOR or _makes(code)):
                self.returns[place] += 1

        with _told_of_all_threads(told):
            yield


@contextmanager
def _told_of_all_threads(told: Callable[[FrameType, str, Any], None]) -> Iterator[None]:
    """Of this one, and of those that are started while it is open."""
    threading.setprofile(told)
    sys.setprofile(told)
    try:
        yield
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def _makes(code: CodeType) -> bool:
    return code.co_name == "__init__"


def place_of(code: CodeType) -> Place | None:
    """The place of a function; None where it is not ours, or what catches faults."""
    file, name = code.co_filename, code.co_qualname
    if not file.startswith(f"{ROOT}{os.sep}") or name == "<module>":
        return None
    within = Path(file).relative_to(ROOT).as_posix()
    if within.split("/")[0] not in PACKAGES or within in TRUSTED_FILES or (within, name) in TRUSTED:
        return None
    return Place(within, name, code.co_firstlineno)


class Raising:
    """Raises a fault once; `has_fired` says whether the run came to it."""

    def __init__(self, fault: Fault) -> None:
        self._fault = fault
        self._left = fault.nth
        self.has_fired = False

    @contextmanager
    def armed(self) -> Iterator[None]:
        fault = self._fault
        event_wanted = "return" if fault.at_return else "call"
        file, function, line = str(ROOT / fault.place.file), *fault.place[1:]

        def told(frame: FrameType, event: str, value: Any) -> None:
            if event != event_wanted:
                return
            code = frame.f_code
            if code.co_firstlineno != line or code.co_qualname != function:
                return
            if code.co_filename != file or (fault.at_return and value is not None):
                return
            self._left -= 1
            if self._left == 0:
                self.has_fired = True
                error = KINDS[fault.kind]()
                raise error  # after which the profiler is off

        with _told_of_all_threads(told):
            yield
