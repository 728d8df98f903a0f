"""The door: values become plain data here, and whatever is read from outside becomes a value.

    Tolerance(error_norm=3e-06, source="noise")  ->  {"error_norm": 3e-06, "source": "noise"}

    from_dict(Location, {"segment": "seg-00000.safetensors", "offset": -1, ...})
    Refused: offset: found -1, expected a number from 0 to 9,223,372,036,854,775,807

On the way out enums become their values, tensor ids and paths their text, tuples lists. A field
with the metadata `INLINE` stands among the keys of its owner; `key("class")` gives a field another
key; a class with a `to_dict` of its own is asked for it. JSON has no NaN and no infinity:
`strict_json` makes them "nan" and "inf", which are read as numbers.

On the way in annotations decide. Every value has exactly the type of its field, numbers and sizes
are within limits.py, and what a class demands of its fields together it says in `__post_init__`. So
the rest of the code may trust what it is given. A missing key takes the field's default, unknown
keys are left alone, and a class with `is_listed` may be a list of its fields in order.
"""

from __future__ import annotations

import json
import math
import re
import reprlib
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import MISSING, Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType, UnionType
from typing import IO, Annotated, Any, NamedTuple, TypeVar, Union, cast, get_args, get_origin
from typing import get_type_hints as hints_of

from ttrace.core.ids import TensorId
from ttrace.core.limits import ITEMS, MOST, TEXT_CHARS, AtMost, Between, Matching
from ttrace.errors import TTraceError

_SHOWN_CHARS = 80  # chosen: of what was found, as long as a line
_REPR = reprlib.Repr()
_REPR.maxstring = _REPR.maxother = _SHOWN_CHARS


class Refused(ValueError):
    """What was found is not what was expected; `place` leads to it from the outermost value."""

    def __init__(self, found: object, expected: str, place: str = "") -> None:
        super().__init__(found, expected, place)
        self.found, self.expected, self.place = found, expected, place

    def __str__(self) -> str:
        found = self.found if isinstance(self.found, InWords) else shown(self.found)
        return f"{self.place.lstrip('.') or 'it'}: found {found}, expected {self.expected}"

    def within(self, step: str) -> Refused:
        """The same, seen from one value further out."""
        return Refused(self.found, self.expected, step + self.place)


class InWords(str):
    """What was found, in words and not as a value."""

    __slots__ = ()


def shown(value: object) -> str:
    """A value in a line, however large it is."""
    text = _REPR.repr(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


INLINE: Mapping[str, Any] = {"inline": True}
_PLAIN = frozenset({NoneType, bool, int, float, str})  # nearly all values are one of these


def key(name: str) -> Mapping[str, Any]:
    """Metadata of a field whose key is not its name."""
    return {"key": name}


def field_key(field: Field[Any]) -> str | None:
    """Under which key a field stands; None where it stands among those of its owner."""
    return None if field.metadata.get("inline") else str(field.metadata.get("key", field.name))


def to_dict(value: Any) -> dict[str, Any]:
    """A dataclass as plain data."""
    data: dict[str, Any] = {}
    for name, key_ in _keys(cast("Any", type(value))):
        found = getattr(value, name)
        if key_ is None:
            data |= to_dict(found)
        else:
            data[key_] = found if type(found) in _PLAIN else _plain(found)
    return data


@cache
def _keys(cls: type[Any]) -> list[tuple[str, str | None]]:
    """The name and the key of every field."""
    return [(field.name, field_key(field)) for field in fields(cls)]


def _plain(value: Any) -> Any:
    if type(value) in _PLAIN:
        return value
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


def strict_json(data: Any) -> Any:
    """Plain data with texts for numbers that JSON has not."""
    if is_odd_number(data):
        return str(data)
    if isinstance(data, dict):
        return {key: strict_json(value) for key, value in data.items()}
    return [strict_json(value) for value in data] if isinstance(data, list | tuple) else data


def is_odd_number(value: Any) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


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
    # Outside in, each layer by the reader of what is inside of it:
    #     Annotated[tuple[Size, ...], AtMost(63)] | None    _optional(_items(<Size>, 63))
    #     Size, which is Annotated[int, Between(0, MOST)]   _within(_whole, Between(0, MOST))
    #     dict[Label, Sizes]                                _mapping(<Label>, <Sizes>)
    #     TensorId | float                                  _one_of((_id, _number)): first to fit
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
