"""The guard: a fault of ours inside of a training run is said, and the run goes on as without us.

    Guard.recording(where, work)    one tensor could not be recorded: all others are
    Guard.harmed(where, error)      anything else failed: nothing more of this step is recorded
    Guard.ended(where, error)       a step could not be begun or ended: nothing more of the run is
    Hook                            what stands on modules, tensors and optimizers of the run
    entry, Around                   what a script calls
    Handles                         what is to be taken off again
    in_background                   a thread of ours

Every way from the run into the tracer leads through one of these, or through adapters.patching,
which tells this guard. Only they must not fail themselves. An exception of the run's own,
KeyboardInterrupt and SystemExit are never kept from it.
"""

from __future__ import annotations

import functools
import logging
import sys
from collections.abc import Callable
from contextlib import ContextDecorator, suppress
from types import TracebackType
from typing import Any, Protocol, TypeVar

import torch

from ttrace.text import inert

_T = TypeVar("_T")
_F = TypeVar("_F", bound=Callable[..., Any])

_LOG = logging.getLogger("ttrace")
_FAULTS_KEPT = 20  # arbitrary: enough to see a pattern, few enough to read
_MOST_CHARS = 300  # chosen: a line of a log


def log_fault(what: str, error: Exception) -> str:
    """One line of the log, and the sentence that it has; the traceback is for who debugs us."""
    line = inert(f"{what}: {_in_one_line(error)}")
    _LOG.error("ttrace: %s; training goes on", line)
    _LOG.debug("ttrace: the same, for whoever repairs it", exc_info=error)
    return line


def _in_one_line(error: Exception) -> str:
    """Kind and message in one short line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text[:_MOST_CHARS]}"


def _nothing(*_: Any, **__: Any) -> None:
    return None


class Guard:
    """Counts faults, keeps the first of them for the trace, and switches recording off."""

    def __init__(self) -> None:
        self.switch_off: Callable[[], None] = _nothing  # for the rest of the step
        self.give_up: Callable[[], None] = _nothing  # for the rest of the run
        self.is_off = False  # whether it was, in this step
        self.handles = Handles()  # of what stands on the run's objects until the last step is done
        self._faults: list[str] = []
        self._count = 0
        self._said: set[str] = set()

    def recording(self, where: object, work: Callable[..., _T], *given: Any) -> _T | None:
        """What `work` returns; None after a fault in it, which leaves the rest of the step alone.

        `where` becomes a text only then: hooks are many, and faults are few.

        What a step is made of may be stranger than we know: a tensor without storage, an argument
        that cannot be walked.
        """
        try:
            return work(*given)
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
            self.lost(where, error)
            return None

    def lost(self, where: object, error: Exception) -> None:
        if not self.is_off:  # else it follows from that
            self._keep("could not record", where, error)

    def stopped(self, where: str, error: Exception) -> None:
        """A disk takes no more: what hooks still do costs nothing."""
        where = f"{where} (recording stops here, the training run goes on)"
        self._keep("could not write", where, error)

    def harmed(self, where: object, error: Exception) -> None:
        with suppress(Exception):
            self.switch_off()
        self._keep("records nothing more of this step after a fault in", where, error)

    def ended(self, where: str, error: Exception) -> None:
        self._keep("records nothing more after a fault in", where, error)
        with suppress(Exception):
            self.give_up()

    def faults(self) -> tuple[str, ...]:
        """For the trace: the first ones, and how many more there were."""
        more = self._count - len(self._faults)
        return (*self._faults, f"and {more} more") if more else tuple(self._faults)

    def _keep(self, effect: str, where: object, error: Exception) -> None:
        """Said once for every effect: a log is read by people who train."""
        with suppress(Exception):  # the message of an error may be made by somebody else
            self._count += 1
            if len(self._faults) < _FAULTS_KEPT:
                self._faults.append(f"{where}: {_in_one_line(error)}")
            if effect not in self._said:
                self._said.add(effect)
                log_fault(f"{effect} {where}", error)


class Hook:
    """A function of ours that an object of the run calls: a fault in it is as if it were not there.

    What is `given` comes before the arguments: a step makes thousands of hooks, and every closure
    would be several objects more for the garbage collector to walk.

    A copy of the object has a hook that does nothing: it is another model, and may live in another
    process.
    """

    __slots__ = ("__weakref__", "_given", "_guard", "_where", "_work")
    # torch would warn that a tensor is saved without it.
    __torch_unserializable__ = True

    def __init__(self, guard: Guard, where: object, work: Callable[..., Any], *given: Any) -> None:
        self._guard = guard
        self._where = where
        self._work = work
        self._given = given

    def __call__(self, *args: Any) -> Any:
        try:
            return self._work(*self._given, *args)
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
            self._guard.harmed(self._where, error)
            return None

    def __deepcopy__(self, memo: object) -> Callable[..., None]:
        return does_nothing

    def __reduce__(self) -> tuple[Callable[[], Callable[..., None]], tuple[()]]:
        return _copied, ()


def does_nothing(*_: Any, **__: Any) -> None:
    """What stands on a copy instead of a hook."""


def _copied() -> Callable[..., None]:
    return does_nothing


def module_hook(guard: Guard, where: str, work: Callable[..., Any]) -> Hook:
    """A hook that a compiler must not trace into: it would see no values.

    Whoever compiles has imported torch._dynamo; for all others that would be a second of import.
    """
    return (_eager_hook() if "torch._dynamo" in sys.modules else Hook)(guard, where, work)


@functools.cache
def _eager_hook() -> type[Hook]:
    call = torch.compiler.disable(Hook.__call__)
    return type("EagerHook", (Hook,), {"__slots__": (), "__call__": call})


class Handle(Protocol):
    """What torch gives for a hook."""

    def remove(self) -> None: ...


class Handles:
    """What was put on objects of the run; where one cannot be taken off, the others are."""

    def __init__(self) -> None:
        self._all: list[Handle] = []

    def add(self, *handles: Handle) -> None:
        self._all += handles

    def remove(self) -> None:
        found, self._all = self._all, []
        for handle in found:
            with suppress(Exception):
                handle.remove()


def in_background(work: Callable[[], None], failed: Callable[[Exception], None]) -> None:
    """The body of a thread of ours: a fault in it ends the thread and is told, not printed."""
    try:
        work()
    except Exception as error:  # noqa: BLE001  (nobody else is there to catch it)
        with suppress(Exception):
            failed(error)


def entry(
    where: str, otherwise: Callable[..., Any] = _nothing, *, gives_up: bool = False
) -> Callable[[_F], _F]:
    """A method that a script or a framework calls; after a fault it returns `otherwise(...)`.

    The object has a `guard`. `gives_up`: nothing more of the run is recorded after that.
    """

    def decorate(method: _F) -> _F:
        @functools.wraps(method)
        def call(self: Any, *args: Any, **kwargs: Any) -> Any:
            try:
                return method(self, *args, **kwargs)
            except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
                (self.guard.ended if gives_up else self.guard.harmed)(where, error)
            return otherwise(self, *args, **kwargs)

        return call  # type: ignore[return-value]

    return decorate


class Around(ContextDecorator):
    """`with` around a part of the run, whose exceptions pass: three functions, each an entry."""

    def __init__(
        self, *, enter: Callable[[], bool], leave: Callable[[], None], abandon: Callable[[], None]
    ) -> None:
        self._enter, self._leave, self._abandon = enter, leave, abandon
        self._has_entered = False

    def __enter__(self) -> None:
        self._has_entered = self._enter()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        if self._has_entered:
            (self._leave if error is None else self._abandon)()
