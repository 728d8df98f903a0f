"""Results as JSON files, and back.

Enters: a result, or any plain data. Leaves: strict JSON, which schema.py describes
for results: JSON has no NaN and no infinity, so they become the strings "nan" and "inf".
"""

from __future__ import annotations

import json
from typing import Any

from ttrace.core.door import Refused, bounded, is_odd_number, parse_json, strict_json
from ttrace.core.limits import RESULT_BYTES
from ttrace.core.results import CheckResult
from ttrace.errors import UsageError
from ttrace.report import overall, view, wording
from ttrace.report.wording import mesh_of
from ttrace.text import inert
from ttrace.trace.store import PathOrUrl, place_of

_APART = json.JSONEncoder(allow_nan=False)
_CLOSE = json.JSONEncoder(allow_nan=False, separators=(",", ":"))


def render(result: CheckResult) -> str:
    """A result as `--json` writes it: its types, and `words` for those who only print them."""
    data = result.to_dict()
    _add_words(result, data)
    return dumps(data)


def _add_words(result: CheckResult, data: dict[str, Any]) -> None:
    mesh = mesh_of(result)
    for entry, cause in zip(data["culprits"], view.root_causes(result), strict=True):
        entry["words"] = inert(f"{cause.place}: {cause.reason}")
    for entry, tensor in zip(data["tensors"], result.tensors, strict=True):
        entry["words"] = inert(wording.finding(tensor, mesh))
    for entry, note in zip(data["notes"], result.notes, strict=True):
        entry["words"] = inert(overall.note(note))
    if result.isolation is not None:
        _add_words(result.isolation, data["isolation"])


def dumps(data: object) -> str:
    """One line for every tensor: small, quick to write, and lines are what people search in."""
    # Only a text can hold ##, which a log of a CI system might obey, in whatever line it stands.
    return _written(data, "").replace("##", r"#\u0023") + "\n"


def read_result(file: PathOrUrl | str) -> CheckResult:
    """Return the result that `--json` or `--out` wrote; UsageError says why it cannot be read."""
    try:
        with place_of(file).open("rb") as opened:
            data = parse_json(bounded(opened, RESULT_BYTES))
        return _made(data, file)
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except Refused as refused:
        raise UsageError(
            f"{file} is not a result: {refused}; expected the result.json that `ttrace diff` "
            "leaves, or what `ttrace check --json` wrote"
        ) from refused


def _made(data: Any, file: PathOrUrl | str) -> CheckResult:
    try:
        return CheckResult.from_dict(data)
    except UsageError as error:  # it is of another schema
        raise UsageError(f"{file}: {error}") from error


def _written(data: Any, margin: str) -> str:
    """Objects in objects are opened, lists have an entry in every line, entries are closed."""
    inner = f"{margin} "
    if isinstance(data, dict) and data:
        parts = [f"{json.dumps(str(k))}: {_written(v, inner)}" for k, v in data.items()]
        opened, closed = "{", "}"
    elif isinstance(data, list | tuple) and any(map(_is_entry, data)):
        parts = [_in_one_line(v, _CLOSE) for v in data]
        opened, closed = "[", "]"
    else:
        return _in_one_line(data, _APART)
    return f"{opened}\n{inner}" + f",\n{inner}".join(parts) + f"\n{margin}{closed}"


def _is_entry(value: Any) -> bool:
    return isinstance(value, dict | list | tuple | str) or is_odd_number(value)


def _in_one_line(data: Any, encoder: json.JSONEncoder) -> str:
    try:
        return encoder.encode(data)
    except ValueError:  # it has a number that JSON has not
        return encoder.encode(strict_json(data))
