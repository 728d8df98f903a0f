"""Plain data: frozen dataclasses to what JSON can hold, and back, by their annotations.

    Tolerance(error_norm=3e-06, source="noise")  <->  {"error_norm": 3e-06, "source": "noise"}

Enums become their values, tensor ids and paths their text, tuples lists. A field with the metadata
`INLINE` stands among the keys of its owner; `key("class")` gives a field another key; a class with
a `to_dict` of its own is asked for it. On the way back a missing key takes the field's default,
unknown keys are left alone, and numbers may be the strings "inf" and "nan".
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import Any, TypeVar, Union, cast, get_args, get_origin, get_type_hints

from ttrace.core.ids import TensorId

_T = TypeVar("_T")
Reader = Callable[[Any], Any]

INLINE: Mapping[str, Any] = {"inline": True}


def key(name: str) -> Mapping[str, Any]:
    """Metadata of a field whose key is not its name."""
    return {"key": name}


def to_dict(value: Any) -> dict[str, Any]:
    """A dataclass as plain data."""
    data: dict[str, Any] = {}
    for field in fields(value):
        found = getattr(value, field.name)
        if field.metadata.get("inline"):
            data |= to_dict(found)
        else:
            data[_key(field)] = _plain(found)
    return data


def from_dict(cls: type[_T], data: Mapping[str, Any]) -> _T:
    """The inverse of `to_dict`; a broken value raises KeyError, TypeError or ValueError."""
    if not isinstance(data, Mapping):
        raise TypeError(f"{cls.__name__} expected an object, found {data!r}")
    values = {}
    for name, place, is_required, read in _fields(cast("Any", cls)):
        if place is None:
            values[name] = read(data)
        elif place in data:
            values[name] = read(data[place])
        elif is_required:
            raise KeyError(place)
    return cls(**values)


def _plain(value: Any) -> Any:
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, TensorId | Path):
        return str(value)
    if is_dataclass(value):
        own = getattr(value, "to_dict", None)
        return to_dict(value) if own is None else own()
    if isinstance(value, tuple | list):
        return [_plain(item) for item in value]
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    return value


def _key(field: Field[Any]) -> str:
    return str(field.metadata.get("key", field.name))


@cache
def _fields(cls: type[Any]) -> list[tuple[str, str | None, bool, Reader]]:
    """Name, key (none where it is inline), whether it must be there, and how it is read."""
    hints = get_type_hints(cls)
    return [
        (
            field.name,
            None if field.metadata.get("inline") else _key(field),
            field.default is MISSING and field.default_factory is MISSING,
            _reader(hints[field.name]),
        )
        for field in fields(cls)
    ]


@cache
def _reader(hint: Any) -> Reader:
    origin, args = get_origin(hint), get_args(hint)
    if origin in (UnionType, Union):
        found = _one_of(tuple(_reader(arg) for arg in args if arg is not NoneType))
        return _optional(found) if NoneType in args else found
    if origin is tuple and args[-1:] == (Ellipsis,):
        item = _reader(args[0])
        return lambda data: tuple(map(item, _list(data)))
    if origin is tuple:
        items = tuple(map(_reader, args))
        return lambda data: tuple(
            read(value) for read, value in zip(items, _list(data), strict=True)
        )
    if origin is dict:
        name, value = map(_reader, args)
        return lambda data: {name(k): value(v) for k, v in data.items()}
    if hint is TensorId:
        return TensorId.parse
    if hint is float:
        return _float
    if hint in (int, str, bool):
        return _exactly(hint)
    if is_dataclass(hint):
        return lambda data: from_dict(cast("type[Any]", hint), data)
    return cast("Reader", hint)  # enums and paths read their text


def _one_of(readers: tuple[Reader, ...]) -> Reader:
    """The first that takes the value."""

    def read(data: Any) -> Any:
        for reader in readers[:-1]:
            try:
                return reader(data)
            except (TypeError, ValueError):
                continue
        return readers[-1](data)

    return read


def _optional(read: Reader) -> Reader:
    return lambda data: None if data is None else read(data)


def _exactly(kind: type[Any]) -> Reader:
    def read(data: Any) -> Any:
        if not isinstance(data, kind) or (kind is int and isinstance(data, bool)):
            raise TypeError(f"expected {kind.__name__}, found {data!r}")
        return data

    return read


def _float(data: Any) -> float:
    if isinstance(data, bool) or not isinstance(data, int | float | str):
        raise TypeError(f"expected a number, found {data!r}")
    return float(data)


def _list(data: Any) -> list[Any] | tuple[Any, ...]:
    if not isinstance(data, list | tuple):
        raise TypeError(f"expected a list, found {data!r}")
    return data
