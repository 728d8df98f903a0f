"""Results as JSON files, and back.

Enters: a result, or any plain data of ours. Leaves: strict JSON, which result.schema.json describes
for results: JSON has no NaN and no infinity, so they become the strings "nan" and "inf".
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from ttrace.core.results import CheckResult
from ttrace.errors import UsageError


def dumps(data: object) -> str:
    return json.dumps(_strict(data), indent=1, allow_nan=False) + "\n"


def read_result(file: Path) -> CheckResult:
    """A result that `--json` or `--out` wrote."""
    try:
        return CheckResult.from_json(json.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise UsageError(f"cannot read {file}: {error.strerror}") from error
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise UsageError(
            f"{file} is not a result: {type(error).__name__}: {error}; expected the result.json "
            "that `ttrace diff` leaves, or what `ttrace check --json` wrote"
        ) from error


def _strict(data: Any) -> Any:
    if isinstance(data, float) and not math.isfinite(data):
        return str(data)
    if isinstance(data, dict):
        return {key: _strict(value) for key, value in data.items()}
    return [_strict(value) for value in data] if isinstance(data, list | tuple) else data
