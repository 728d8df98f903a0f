"""The JSON schema of results, made from the types that json_file.py writes.

    python -m ttrace.report.schema > result.schema.json

Enters: the dataclasses of a result, with the annotations that core/door.py reads by. Leaves: a
schema (draft 2020-12) that describes a written result to the last key, and refuses any other.
Every class and every enum is a definition under its own name.
"""

from __future__ import annotations

import inspect
import json
import math
import sys
from collections.abc import Mapping
from dataclasses import fields, is_dataclass
from enum import Enum
from types import NoneType, UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from ttrace.core.blame import Culprit
from ttrace.core.door import field_key
from ttrace.core.finding import Note
from ttrace.core.ids import Kind, TensorId
from ttrace.core.limits import AtMost, Between, Matching
from ttrace.core.results import (
    SCHEMA_VERSION,
    CheckResult,
    Covered,
    Lost,
    Outcome,
    TensorResult,
    Verdict,
)
from ttrace.core.statistics import Statistic

# What the `to_dict` of a class writes beside its fields. A key that is missing here or there fails
# the test that validates written results: every key is required, and no other is allowed.
_COMPUTED: Mapping[type[Any], Mapping[str, Any]] = {
    CheckResult: {
        "schema": Annotated[int, Between(SCHEMA_VERSION, SCHEMA_VERSION)],
        "outcome": Outcome,
        "exit_code": Annotated[int, Between(0, len(Outcome) - 1)],
        "counts": dict[Verdict, int],
        "covered": tuple[Covered, ...],
        "lost": tuple[Lost, ...],
    },
    TensorResult: {"module": str, "kind": Kind, "slot": str, "statistic": Statistic | None},
}
_WITH_WORDS = (Culprit, TensorResult, Note)  # json_file.py adds `words` for people to them
_SCALARS: Mapping[Any, Any] = {
    int: {"type": "integer"},
    bool: {"type": "boolean"},
    str: {"type": "string"},
    NoneType: {"type": "null"},
}


def make_schema() -> dict[str, Any]:
    """Return the schema of a result, as plain data."""
    definitions = _Definitions()
    top = definitions.describe(CheckResult)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "TTrace result",
        **top,
        "$defs": dict(sorted(definitions.known.items())),
    }


class _Definitions:
    """The definitions that were made, by name; a class may refer to itself."""

    def __init__(self) -> None:
        self.known: dict[str, dict[str, Any]] = {}

    def describe(self, hint: Any) -> dict[str, Any]:
        """Return the schema of what has this annotation, in which classes are references."""
        origin, args = get_origin(hint), get_args(hint)
        if origin is Annotated:
            return self._describe_limited(*args)
        if origin in (UnionType, Union):
            return {"anyOf": [self.describe(arg) for arg in args]}
        if origin is tuple and args[-1:] == (Ellipsis,):
            return {"type": "array", "items": self.describe(args[0])}
        if origin is tuple:
            each = [self.describe(arg) for arg in args]
            return {"type": "array", "prefixItems": each, "minItems": len(each), "items": False}
        if origin in (dict, Mapping):
            name, value = map(self.describe, args)
            return {"type": "object", "propertyNames": name, "additionalProperties": value}
        if hint is float:
            return _describe_number(Between(-math.inf, math.inf))
        return _SCALARS.get(hint) or self._refer(hint)

    def _describe_limited(self, hint: Any, limit: AtMost | Between | Matching) -> dict[str, Any]:
        if isinstance(limit, Between):
            return _describe_integer(limit) if hint is int else _describe_number(limit)
        if isinstance(limit, Matching):
            return {"type": "string", "pattern": f"^(?:{limit.form})$"}
        most = "maxItems" if get_origin(hint) is tuple else "maxLength"
        return {**self.describe(hint), most: limit.count}

    def _refer(self, cls: type[Any]) -> dict[str, Any]:
        name = cls.__name__
        if name not in self.known:
            self.known[name] = {}  # so that a class which holds itself ends
            self.known[name] = self._define(cls)
        return {"$ref": f"#/$defs/{name}"}

    def _define(self, cls: type[Any]) -> dict[str, Any]:
        if cls is TensorId:
            form = rf"^step[0-9]{{1,18}}/[\s\S]*:(?:{'|'.join(Kind)})(?:[@.][\s\S]*)?$"
            return {"type": "string", "pattern": form}
        about = {"description": (inspect.getdoc(cls) or "").split("\n")[0]}
        if issubclass(cls, Enum):
            return about | {"enum": [member.value for member in cls]}
        if not is_dataclass(cls):
            raise TypeError(f"found a field of type {cls}, of which nobody says how it is written")
        properties = self._properties(cls)
        required = list(properties)
        if cls in _WITH_WORDS:
            properties["words"] = self.describe(str)
        return about | {
            "type": "object",
            "properties": properties,
            "required": required,
            "additionalProperties": False,
        }

    def _properties(self, cls: type[Any]) -> dict[str, Any]:
        hints = get_type_hints(cls, include_extras=True)
        found = {key: self.describe(hint) for key, hint in _COMPUTED.get(cls, {}).items()}
        for field in fields(cls):
            key = field_key(field)
            if key is None:  # its fields stand among those of its owner
                found |= self._properties(hints[field.name])
            else:
                found[key] = self.describe(hints[field.name])
        return found


def _describe_integer(limit: Between) -> dict[str, Any]:
    if limit.low == limit.high:
        return {"const": limit.low}
    return {"type": "integer", "minimum": limit.low, "maximum": limit.high}


def _describe_number(limit: Between) -> dict[str, Any]:
    """Return the schema of a number within a limit: JSON has no NaN or infinity, texts stand in."""
    ends = {"minimum": limit.low, "maximum": limit.high}
    finite = {name: end for name, end in ends.items() if math.isfinite(end)}
    odd = ["nan", *(text for text in ("inf", "-inf") if limit.low <= float(text) <= limit.high)]
    return {"anyOf": [{"type": "number", **finite}, {"enum": odd}]}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(make_schema(), indent=1) + "\n")
