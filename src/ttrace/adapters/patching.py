"""Attributes replaced for a while: how a framework is watched, and how it is made to run elsewhere.

    def backward(original, *args, **kwargs):
        print("backward begins")
        return original(*args, **kwargs)

    with patched(torch.autograd, "backward", backward):
        ...

Enters: a module, a class or an object, and the name of an attribute, its own or inherited. Leaves:
exactly what was there. Patches nest and must be closed in the reverse order, as `with` does.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

_ABSENT = object()


@contextmanager
def patched(owner: Any, name: str, around: Callable[..., Any]) -> Iterator[None]:
    """While open, calls of `owner.name` are calls of `around(original, *args, **kwargs)`.

    A method's first argument is the object, a class method's `original` is bound to its class.
    """
    original: Any = getattr(owner, name)
    found = inspect.getattr_static(owner, name) if isinstance(owner, type) else original

    @functools.wraps(original, updated=())
    def call(*args: Any, **kwargs: Any) -> Any:
        return around(original, *args, **kwargs)

    def call_of_class(cls: type, *args: Any, **kwargs: Any) -> Any:
        return around(found.__get__(None, cls), *args, **kwargs)

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
    # An inherited attribute must not become the owner's own: others may patch where it is from.
    own = getattr(owner, "__dict__", None)
    before = getattr(owner, name) if own is None else own.get(name, _ABSENT)
    setattr(owner, name, value)
    try:
        yield
    finally:
        if before is _ABSENT:
            delattr(owner, name)
        else:
            setattr(owner, name, before)
