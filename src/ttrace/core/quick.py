"""Values of which a step makes thousands: they are made quickly, and hashed once.

Ids and layouts are keys of many dicts, many times each. The hash is no field: it is neither
compared, nor written, nor sent to another process, in which texts have other hashes.
"""

from __future__ import annotations

from dataclasses import MISSING, fields
from typing import Any, TypeVar, cast

_T = TypeVar("_T")


class HashedOnce:
    """Base of a frozen dataclass with slots, which takes over its `__hash__`."""

    __slots__ = ("_hash",)
    _hash: int

    def __hash__(self) -> int:
        try:
            return self._hash
        except AttributeError:
            found = hash(self._key())
            object.__setattr__(self, "_hash", found)
            return found

    def _key(self) -> tuple[object, ...]:
        """What tells two of them apart."""
        return tuple(getattr(self, name) for name in type(self).__slots__)


def make_quickly(cls: type[_T]) -> type[_T]:
    """Give a frozen dataclass with slots an `__init__` that takes two thirds of the time.

    The one of dataclasses looks up `object.__setattr__` for every field; this one fills the slots
    by their descriptors. It knows no factories of defaults, and calls no `__post_init__`:

        def __init__(self, *, step, slot=default_slot):
            set_step(self, step)
            set_slot(self, slot)
    """
    known: dict[str, Any] = {}
    parameters, body = [], []
    for field in fields(cast("Any", cls)):
        known[f"set_{field.name}"] = getattr(cls, field.name).__set__
        known[f"default_{field.name}"] = field.default
        default = "" if field.default is MISSING else f"=default_{field.name}"
        parameters.append(f"{field.name}{default}")
        body.append(f"    set_{field.name}(self, {field.name})\n")
    exec(f"def __init__(self, *, {', '.join(parameters)}):\n{''.join(body)}", known)
    cls.__init__ = known["__init__"]  # type: ignore[method-assign]
    return cls
