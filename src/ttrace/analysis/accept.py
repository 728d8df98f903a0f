"""The accept list: a TOML file of what may differ, read and written.

    [[accept]]
    id = "step*/drop:*"                       a pattern of ids as reports show them, * is any text
    reason = "each rank draws its own mask"
    bound = 50                                optional: the largest error over tolerance

Enters: a file, and verdicts. Leaves: its entries, and what every entry did. An error beyond the
bound of its entry stays a failure.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from ttrace.analysis.judge import FAILURES, Excuse, excuse
from ttrace.core.door import InWords, Refused, from_dict, read_bounded
from ttrace.core.limits import ACCEPT_BYTES
from ttrace.core.results import Acceptance, AcceptedTensors, CheckResult, TensorResult, Verdict
from ttrace.errors import UsageError

AcceptList = Path | str | Sequence[Acceptance]

_KEYS = [field.name for field in fields(Acceptance)]


def acceptances(given: AcceptList | None) -> tuple[Acceptance, ...]:
    """The entries of a file, or those that were given."""
    if given is None:
        return ()
    if not isinstance(given, Path | str):
        return tuple(given)
    path = Path(given)
    try:
        return _parsed(_read(path), path)
    except OSError as error:
        raise UsageError(f"cannot read the accept list {path}: {error.strerror}") from error


def uses(
    before: Sequence[TensorResult], entries: Sequence[Acceptance]
) -> tuple[AcceptedTensors, ...]:
    """What every entry did to verdicts as they were before."""
    failures = [tensor for tensor in before if tensor.verdict.is_failure]
    found = []
    for entry in entries:
        severities = [t.severity for t in failures if entry.matches(t.id)]
        count = sum(map(entry.allows, severities))
        found.append(AcceptedTensors(entry=entry, count=count, beyond=len(severities) - count))
    return tuple(found)


def with_isolated(result: CheckResult, isolation: CheckResult) -> CheckResult | None:
    """A comparison whose every failure follows from what is accepted in an isolated run.

    None where the isolated run accepts nothing, or a failure is not right by itself there.
    """
    if isolation.culprits or not any(t.verdict is Verdict.ACCEPTED for t in isolation.tensors):
        return None
    fine = (Verdict.PASS, Verdict.BORDERLINE, Verdict.HARMLESS, Verdict.ACCEPTED)
    right = {t.id for t in isolation.tensors if t.verdict in fine}
    if not all(failure.id in right for failure in result.failures):
        return None
    follow = (Excuse(id=t.id, verdict=Verdict.ACCEPTED, over=FAILURES) for t in result.failures)
    tensors, _ = excuse(result.tensors, follow)
    return replace(result, tensors=tensors, culprits=(), isolation=isolation)


def append_entry(file: Path, entry: Acceptance) -> None:
    """Add an entry at the end of a file; everything that stands in it stays as it is."""
    before = _read(file) if file.exists() else ""
    known = _parsed(before, file)
    values = {"id": entry.id, "reason": entry.reason, "bound": entry.bound}
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value is not None]
    gap = "" if not before else "\n" if before.endswith("\n") else "\n\n"
    text = before + gap + "\n".join(["[[accept]]", *lines]) + "\n"
    with suppress(UsageError):
        if _parsed(text, file) == (*known, entry):
            file.write_text(text, encoding="utf-8")
            return
    raise UsageError(f"the entry for {entry.id!r} cannot be written to {file} as TOML text")


def _toml(value: str | float) -> str:
    """A number, or a text in which nothing acts where the file is shown."""
    shown = json.dumps(value, ensure_ascii=False)
    return "".join(c if c.isprintable() else f"\\U{ord(c):08x}" for c in shown)


def _parsed(text: str, path: Path) -> tuple[Acceptance, ...]:
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"{path} is not TOML: {error}") from error
    listed = data.pop("accept", [])
    if data or not isinstance(listed, list):
        raise UsageError(
            f"{path} must hold [[accept]] entries alone, found {', '.join(data) or 'accept = ...'}"
        )
    return tuple(_entry(found, f"entry {n} of {path}") for n, found in enumerate(listed, start=1))


def _entry(found: Any, where: str) -> Acceptance:
    try:
        unknown = [key for key in found if key not in _KEYS] if isinstance(found, dict) else []
        if unknown:
            raise Refused(InWords(f"the key {unknown[0]!r}"), f"only {', '.join(_KEYS)}")
        return from_dict(Acceptance, found)
    except Refused as refused:
        raise UsageError(
            f'{where}: {refused}; expected id = "pattern", reason = "why" and, if you like, bound '
            "= the largest error over tolerance"
        ) from refused


def _read(file: Path) -> str:
    try:
        return read_bounded(file, ACCEPT_BYTES).decode("utf-8")
    except (Refused, UnicodeDecodeError) as error:
        raise UsageError(f"{file} is no accept list: {error}") from error
