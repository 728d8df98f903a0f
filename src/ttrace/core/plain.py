"""Plain data: frozen dataclasses as what JSON can hold; door.py makes them again.

    Tolerance(error_norm=3e-06, source="noise")  ->  {"error_norm": 3e-06, "source": "noise"}

Enums become their values, tensor ids and paths their text, tuples lists. A field with the metadata
`INLINE` stands among the keys of its owner; `key("class")` gives a field another key; a class with
a `to_dict` of its own is asked for it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import Field, fields, is_dataclass
from enum import Enum
from pathlib import Path
from typing import Any

from ttrace.core.ids import TensorId

INLINE: Mapping[str, Any] = {"inline": True}


def key(name: str) -> Mapping[str, Any]:
    """Metadata of a field whose key is not its name."""
    return {"key": name}


def field_key(field: Field[Any]) -> str | None:
    """Under which key a field stands; None where it stands among those of its owner."""
    return None if field.metadata.get("inline") else str(field.metadata.get("key", field.name))


def to_dict(value: Any) -> dict[str, Any]:
    """A dataclass as plain data."""
    data: dict[str, Any] = {}
    for field in fields(value):
        found, name = getattr(value, field.name), field_key(field)
        if name is None:
            data |= to_dict(found)
        else:
            data[name] = _plain(found)
    return data


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
