"""The door: whatever is read from outside becomes a value here, by its annotations, or is refused.

    from_dict(Location, {"segment": "seg-00000.safetensors", "offset": -1, ...})
    Refused: offset: found -1, expected a number from 0 to 9,223,372,036,854,775,807

Every value has exactly the type of its field, numbers and sizes are within limits.py, and what a
class demands of its fields together it says in `__post_init__`. So the rest of the code may trust
what it is given. A missing key takes the field's default, unknown keys are left alone, numbers may
be the strings "inf" and "nan", and a class with `is_listed` may be a list of its fields in order.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin
from typing import get_type_hints as hints_of

from ttrace.core.ids import TensorId
from ttrace.core.limits import ITEMS, MOST, TEXT_CHARS, AtMost, Between, Matching
from ttrace.core.plain import field_key
from ttrace.core.refused import InWords, Refused, shown
from ttrace.errors import TTraceError

_T = TypeVar("_T")
_NUMBER_CHARS = 64  # chosen: of a number in quotes
_Reader = Callable[[Any], Any]


def parse_json(text: str | bytes) -> Any:
    """A JSON value; Refused says where the text breaks off from being JSON."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise Refused(InWords(f"no JSON ({error})"), "JSON text") from None


def read_bounded(file: Path, most_bytes: int) -> bytes:
    """All of a file that may have so many bytes; OSError where it cannot be read."""
    with file.open("rb") as opened:
        return bounded(opened, most_bytes)


def bounded(opened: IO[bytes], most_bytes: int) -> bytes:
    """The same of a file that is open."""
    data = opened.read(most_bytes + 1)
    if len(data) > most_bytes:
        raise Refused(InWords(f"more than {most_bytes:,} bytes"), f"at most {most_bytes:,} bytes")
    return data


def from_dict(cls: type[_T], data: Any, **given: Any) -> _T:
    """The inverse of `to_dict`, with fields that the data cannot know; Refused where it is none."""
    if isinstance(data, list) and getattr(cls, "is_listed", False):
        return _from_list(cls, data)
    if not isinstance(data, dict):
        raise Refused(data, f"an object ({cls.__name__})")
    values = dict(given)
    for name, key, is_required, read in _fields(cast("Any", cls)):
        if name in given:
            continue
        if key is None:
            values[name] = read(data)
        elif key in data:
            try:
                values[name] = read(data[key])
            except Refused as refused:
                raise refused.within(f".{key}") from None
        elif is_required:
            raise Refused(InWords("nothing"), "a value", f".{key}")
    return _made(cls, values)


def _from_list(cls: type[_T], data: Sequence[Any]) -> _T:
    known = _fields(cast("Any", cls))
    if len(data) != len(known):
        raise Refused(data, f"a list of {len(known)} ({cls.__name__})")
    values = {}
    for (name, _, _, read), item in zip(known, data, strict=True):
        try:
            values[name] = read(item)
        except Refused as refused:
            raise refused.within(f".{name}") from None
    return _made(cls, values)


def _made(cls: type[_T], values: dict[str, Any]) -> _T:
    try:
        return cls(**values)
    except TTraceError as error:  # what it demands of its fields together
        raise Refused(InWords(str(error)), f"a {cls.__name__} that can be") from None


class _Field(NamedTuple):
    name: str
    key: str | None
    is_required: bool
    read: _Reader


@cache
def _fields(cls: type[Any]) -> list[_Field]:
    hints = hints_of(cls, include_extras=True)
    return [
        _Field(
            field.name,
            field_key(field),
            field.default is MISSING and field.default_factory is MISSING,
            _reader(hints[field.name]),
        )
        for field in fields(cls)
    ]


@cache
def _reader(hint: Any) -> _Reader:
    origin, args = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return _limited(args[0], args[1])
    if origin in (UnionType, Union):
        found = _one_of(tuple(_reader(arg) for arg in args if arg is not NoneType))
        return _optional(found) if NoneType in args else found
    if origin is tuple and args[-1:] == (Ellipsis,):
        return _items(_reader(args[0]), ITEMS)
    if origin is tuple:
        return _row(tuple(map(_reader, args)))
    if origin in (dict, Mapping):
        return _mapping(*map(_reader, args))
    if hint is TensorId:
        return _id
    if is_dataclass(hint):
        return lambda data: from_dict(cast("type[Any]", hint), data)
    if isinstance(hint, type) and issubclass(hint, Enum):
        return _member(hint)
    return _SCALARS[hint]


def _limited(hint: Any, limit: AtMost | Between | Matching) -> _Reader:
    if isinstance(limit, Between):
        return _within(_reader(hint), limit)
    if isinstance(limit, Matching):
        return _matching(limit)
    if get_origin(hint) is tuple:
        return _items(_reader(get_args(hint)[0]), limit.count)
    return _text(limit.count)


def _within(read: _Reader, limit: Between) -> _Reader:
    low, high, expected = limit.low, limit.high, str(limit)

    def number(data: Any) -> Any:
        value = read(data)
        if value < low or value > high:
            raise Refused(data, expected)
        return value

    return number


def _matching(limit: Matching) -> _Reader:
    fits, expected = re.compile(limit.form).fullmatch, str(limit)

    def text(data: Any) -> str:
        if isinstance(data, str) and fits(data):
            return data
        raise Refused(data, expected)

    return text


def _text(most: int) -> _Reader:
    expected = f"text of at most {most:,} characters"

    def text(data: Any) -> str:
        if isinstance(data, str) and len(data) <= most:
            return data
        raise Refused(data, expected)

    return text


def _items(read: _Reader, most: int) -> _Reader:
    expected = f"a list of at most {most:,}"

    def items(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple) or len(data) > most:
            raise Refused(data, expected)
        try:
            return tuple(map(read, data))
        except Refused:
            return tuple(_one(read, item, f"[{index}]") for index, item in enumerate(data))

    return items


def _row(readers: tuple[_Reader, ...]) -> _Reader:
    expected = f"a list of {len(readers)}"

    def row(data: Any) -> tuple[Any, ...]:
        if not isinstance(data, list | tuple) or len(data) != len(readers):
            raise Refused(data, expected)
        pairs = enumerate(zip(readers, data, strict=True))
        return tuple(_one(read, item, f"[{index}]") for index, (read, item) in pairs)

    return row


def _mapping(read_name: _Reader, read_value: _Reader) -> _Reader:
    def mapping(data: Any) -> dict[Any, Any]:
        if not isinstance(data, dict) or len(data) > ITEMS:
            raise Refused(data, f"an object of at most {ITEMS:,} keys")
        return {
            _one(read_name, name, f"[{shown(name)}]"): _one(read_value, v, f"[{shown(name)}]")
            for name, v in data.items()
        }

    return mapping


def _one(read: _Reader, data: Any, step: str) -> Any:
    try:
        return read(data)
    except Refused as refused:
        raise refused.within(step) from None


def _member(cls: type[Enum]) -> _Reader:
    members: dict[Any, Any] = {member.value: member for member in cls}

    def member(data: Any) -> Any:
        if isinstance(data, str) and data in members:
            return members[data]
        raise Refused(data, f"one of {', '.join(map(str, members))}")

    return member


def _one_of(readers: tuple[_Reader, ...]) -> _Reader:
    """The first that takes the value."""
    if len(readers) == 1:
        return readers[0]

    def read(data: Any) -> Any:
        for reader in readers[:-1]:
            try:
                return reader(data)
            except Refused:
                continue
        return readers[-1](data)

    return read


def _optional(read: _Reader) -> _Reader:
    return lambda data: None if data is None else read(data)


def _whole(data: Any) -> int:
    if type(data) is int and -MOST <= data <= MOST:
        return data
    raise Refused(data, "a whole number of 64 bits")


def _number(data: Any) -> float:
    if type(data) in (float, int) or (isinstance(data, str) and len(data) <= _NUMBER_CHARS):
        with suppress(ValueError, OverflowError):
            return float(data)
    raise Refused(data, 'a number, or one in quotes such as "inf" and "nan"')


def _truth(data: Any) -> bool:
    if isinstance(data, bool):
        return data
    raise Refused(data, "true or false")


def _id(data: Any) -> TensorId:
    if isinstance(data, str):
        with suppress(TTraceError, ValueError):  # as of a number of thousands of digits
            return TensorId.parse(data)
    raise Refused(data, "a tensor id such as step0/layers.1.wq:output.0")


_any_text = _text(TEXT_CHARS)
_SCALARS: dict[Any, _Reader] = {
    int: _whole,
    float: _number,
    bool: _truth,
    str: _any_text,
    Path: lambda data: Path(_any_text(data)),
    Any: lambda data: data,
}
