"""Plain data: frozen dataclasses as what JSON can hold; door.py makes them again.

    Tolerance(error_norm=3e-06, source="noise")  ->  {"error_norm": 3e-06, "source": "noise"}

Enums become their values, tensor ids and paths their text, tuples lists. A field with the metadata
`INLINE` stands among the keys of its owner; `key("class")` gives a field another key; a class with
a `to_dict` of its own is asked for it. JSON has no NaN and no infinity: `strict_json` makes them
"nan" and "inf", which the door takes for numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from types import NoneType
from typing import Any, cast

from ttrace.core.ids import TensorId

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
    for name, key_ in _fields(cast("Any", type(value))):
        found = getattr(value, name)
        if key_ is None:
            data |= to_dict(found)
        else:
            data[key_] = found if type(found) in _PLAIN else _plain(found)
    return data


@cache
def _fields(cls: type[Any]) -> list[tuple[str, str | None]]:
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
