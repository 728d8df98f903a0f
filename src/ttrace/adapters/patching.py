"""Attributes replaced for a while: how a framework is watched, and how it is made to run elsewhere.

    def backward(original, *args, **kwargs):
        print("backward begins")
        return original(*args, **kwargs)

    with patched(torch.autograd, "backward", backward):
        ...

Enters: a module, a class or an object, and the name of an attribute, its own or inherited. Leaves:
exactly what was there. Patches nest and must be closed in the reverse order, as `with` does.

A patch that is opened while somebody is `guarding` keeps its faults from who calls the function:
he gets what the original returns, or raises. Where a process simulates ranks, the patches of each
stand while it runs: `suspend_patches` and `resume_patches` are called when another takes its turn.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from ttrace.core.simulated import OfRank

_ABSENT = object()
TellFault = Callable[[str, Exception], None]  # where it happened, what; it must not raise
_TOLD: ContextVar[TellFault | None] = ContextVar("told", default=None)


@contextmanager
def guarding(told: TellFault) -> Iterator[None]:
    """Patches that are opened now tell their faults, for as long as they are open."""
    token = _TOLD.set(told)
    try:
        yield
    finally:
        _TOLD.reset(token)


class _Once:
    """The original of one call, what it returned or raised, and whether it was called at all."""

    def __init__(self, original: Callable[..., Any]) -> None:
        self._original = original
        self.is_done = False
        self.result: Any = None
        self.error: BaseException | None = None

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        try:
            self.result = self._original(*args, **kwargs)
        except BaseException as error:
            self.error = error
            raise
        self.is_done = True
        return self.result


def unharmed(
    told: TellFault,
    original: Callable[..., Any],
    around: Callable[..., Any],
    /,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """What `around(original, ...)` returns; after a fault in it what the original does.

    The original is called once, by `around` or, where that did not come to it, with the very
    arguments. What it raises itself is raised here.
    """
    once = _Once(original)
    try:
        return around(once, *args, **kwargs)
    except Exception as error:
        if error is once.error:
            raise
        told(getattr(getattr(around, "func", around), "__qualname__", "a patch"), error)
    finally:
        # An error knows this frame by its traceback: together they would wait for the collector.
        theirs, result, is_done = once.error, once.result, once.is_done
        once.error = once.result = None
    if theirs is not None:
        try:
            raise theirs
        finally:
            del theirs
    return result if is_done else original(*args, **kwargs)


@contextmanager
def patched(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """While open, calls of `owner.name` are calls of `around(original, *args, **kwargs)`.

    A method's first argument is the object, a class method's `original` is bound to its class.
    """
    original: Any = getattr(owner, name)
    found = inspect.getattr_static(owner, name) if isinstance(owner, type) else original
    told = _TOLD.get()

    def run(original: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if told is None:
            return around(original, *args, **kwargs)
        return unharmed(told, original, around, *args, **kwargs)

    @functools.wraps(original, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return run(original, args, kwargs)

    def call_of_class(cls: type, *args: Any, **kwargs: Any) -> Any:
        return run(found.__get__(None, cls), args, kwargs)

    value: Any = call
    if isinstance(found, classmethod):
        value = classmethod(functools.wraps(found.__func__, updated=())(call_of_class))
    elif isinstance(found, staticmethod):
        value = staticmethod(call)
    with replaced(owner, name, value):
        yield


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """While open, `owner.name` is `value`."""
    replacement, standing = _Replacement(owner, name, value), _STANDING.get()
    standing.append(replacement)
    try:
        replacement.put()
        yield
    finally:
        standing.remove(replacement)
        replacement.take_back()


class _Replacement:
    """One attribute with another value. To take it back runs no code of ours, which could fail."""

    take_back: Callable[[], object]

    def __init__(self, owner: Any, name: str, value: Any) -> None:
        self._owner, self._name, self._value = owner, name, value
        self.take_back = object

    def put(self) -> None:
        # An inherited attribute must not become the owner's own: others may patch where it is from.
        own = getattr(self._owner, "__dict__", None)
        before = getattr(self._owner, self._name) if own is None else own.get(self._name, _ABSENT)
        undo = (delattr,) if before is _ABSENT else (setattr, before)
        self.take_back = functools.partial(undo[0], self._owner, self._name, *undo[1:])
        setattr(self._owner, self._name, self._value)


_STANDING: OfRank[list[_Replacement]] = OfRank(list)  # in the order in which they were opened


def suspend_patches() -> None:
    """Put back what was there before all that this rank has replaced."""
    for replacement in reversed(_STANDING.get()):
        replacement.take_back()


def resume_patches() -> None:
    for replacement in _STANDING.get():
        replacement.put()
