"""What is kept of a check: a line of clean.json.

Enters: a case and what TTrace said of it, plain or isolated. Leaves: how far the candidate was from
the reference in units of its tolerance, at most, and by what.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass, fields
from hashlib import sha256
from pathlib import Path

import ttrace
from ttrace.core.results import CheckResult, TensorResult
from zoo.clean.case import Case

_KEPT = 5  # alarms of a check, to look into
_DIGITS = 4  # of a ratio: a file of thousands of lines


@dataclass(frozen=True, slots=True, kw_only=True)
class Check:
    """One comparison; `alarms` are tensors that failed or were undecided."""

    key: str
    isolated: bool
    tensors: int
    alarms: int
    largest: float
    largest_id: str
    by_statistic: dict[str, float]
    by_kind: dict[str, float]
    alarmed: list[str]
    seconds: float  # of both checks of the case, and of the reference for the first that needs it
    torch: str
    tool: str  # fingerprint of TTrace's own sources

    @property
    def case(self) -> Case:
        return Case.from_key(self.key)

    @property
    def name(self) -> tuple[str, bool]:
        return self.key, self.isolated


@dataclass(frozen=True, slots=True, kw_only=True)
class Versions:
    """What a check was made with."""

    torch: str
    tool: str


def versions_here() -> Versions:
    """Of this process; sources differ between commits, and between a commit and work on it."""
    import torch

    digest = sha256()
    package = Path(ttrace.__file__).parent
    for file in sorted(file for end in ("*.py", "*.c", "*.h") for file in package.rglob(end)):
        digest.update(file.read_bytes())
    return Versions(torch=torch.__version__, tool=digest.hexdigest()[:8])


def check_of(
    case: Case, result: CheckResult, *, isolated: bool, seconds: float, versions: Versions
) -> Check:
    judged = [tensor for tensor in result.tensors if tensor.ratio is not None]
    worst = max(judged, key=_ratio, default=None)
    alarms = (*result.failures, *result.undecided)
    return Check(
        key=case.key,
        isolated=isolated,
        tensors=len(result.tensors),
        alarms=len(alarms),
        largest=_short(0.0 if worst is None else _ratio(worst)),
        largest_id="" if worst is None else str(worst.id),
        by_statistic=_largest(
            (judgement.reading.statistic.value, judgement.ratio)
            for tensor in judged
            for judgement in tensor.judgements
        ),
        by_kind=_largest((tensor.id.kind.value, _ratio(tensor)) for tensor in judged),
        alarmed=[_alarm(tensor) for tensor in alarms[:_KEPT]],
        seconds=round(seconds, 2),
        torch=versions.torch,
        tool=versions.tool,
    )


def read_checks(path: Path) -> list[Check]:
    if not path.exists():
        return []
    names = {field.name for field in fields(Check)}
    return [
        Check(**{name: line[name] for name in names})
        for line in json.loads(path.read_text())["checks"]
    ]


def write_checks(path: Path, checks: Sequence[Check]) -> None:
    """All or nothing: a run may be ended at any time."""
    lines = ",\n".join(json.dumps(asdict(check)) for check in checks)
    fresh = path.with_suffix(".new")
    fresh.write_text(f'{{"checks": [\n{lines}\n]}}\n')
    fresh.replace(path)


def _ratio(tensor: TensorResult) -> float:
    assert tensor.ratio is not None
    return tensor.ratio


def _alarm(tensor: TensorResult) -> str:
    statistic = "" if tensor.worst is None else tensor.worst.reading.statistic.value
    ratio = "" if tensor.ratio is None else f"{tensor.ratio:.3g}"
    return " ".join(filter(None, (str(tensor.id), tensor.verdict.value, ratio, statistic)))


def _largest(found: Iterable[tuple[str, float]]) -> dict[str, float]:
    largest: dict[str, float] = {}
    for name, ratio in found:
        largest[name] = max(largest.get(name, 0.0), ratio)
    return {name: _short(ratio) for name, ratio in largest.items()}


def _short(ratio: float) -> float:
    return float(f"{ratio:.{_DIGITS}g}") if math.isfinite(ratio) else ratio
