"""One case: a mutated trace is checked, and held against what may come of it."""

from __future__ import annotations

import io
import resource
import signal
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.fuzz.applied import Applied
from attacks.fuzz.base import Base
from attacks.fuzz.mutations import REMOVED, Mutation
from ttrace.analysis import inspect as inspection
from ttrace.analysis.check import check
from ttrace.cli.traces import print_trace
from ttrace.core.results import CheckResult, Outcome
from ttrace.errors import TTraceError
from ttrace.report.terminal import console_on
from ttrace.trace import journal

MOST_SECONDS = 20
_MOST_BYTES = 2 << 30  # chosen: torch, and a lot for files of kilobytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """What went wrong: traceback, slow, memory or silent."""

    kind: str
    told: str
    case: dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ran:
    """What a case came to: refused, an outcome, or violations."""

    came_to: str
    violations: tuple[Violation, ...] = ()


class Late(BaseException):
    """The time of a case is over."""


def run_trace(copy: Path, base: Base, clean: CheckResult, mutation: Mutation) -> Ran:
    """Check the copy of a base with a mutation in it, and look into the mutated trace."""
    applied = Applied(copy, base, mutation)
    case = {"base": base.name, **mutation.to_json()}
    try:
        found, violations = guarded(lambda: _check(copy), case)
        _, more = guarded(lambda: _look(copy / mutation.role), case)
        violations += more
        if found is not None and applied.is_changed and _is_silent(applied, found, clean):
            violations.append(Violation(kind="silent", told=str(found), case=case))
    finally:
        applied.undo()
    if found is None:
        return Ran(came_to="refused", violations=tuple(violations))
    came_to = found.outcome.value if applied.is_changed else "unchanged"
    return Ran(came_to=came_to, violations=tuple(violations))


def guarded(work: Callable[[], Any], case: dict[str, Any]) -> tuple[Any, list[Violation]]:
    """What the work returns, None where it refuses; and what it did wrong."""
    try:
        with _within_time():
            found = work()
    except TTraceError:
        found = None
    except Late:
        return None, [Violation(kind="slow", told=f"over {MOST_SECONDS} s", case=case)]
    except Exception:  # noqa: BLE001  (these are what is looked for)
        return None, [Violation(kind="traceback", told=traceback.format_exc(), case=case)]
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
    if peak > _MOST_BYTES:
        return found, [Violation(kind="memory", told=f"{peak:,} bytes", case=case)]
    return found, []


@contextmanager
def _within_time() -> Iterator[None]:
    def late(*_: object) -> None:
        raise Late

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(MOST_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def _check(copy: Path) -> CheckResult:
    return check(copy / "reference", copy / "candidate", perturbed=[copy / "perturbed"])


def _look(trace: Path) -> None:
    facts = inspection.describe(trace)
    print_trace(facts, console_on(io.StringIO()))
    for name in facts["ids"][:1]:
        inspection.view(trace, name)


def _is_silent(applied: Applied, found: CheckResult, clean: CheckResult) -> bool:
    """Whether nothing tells of a change that must be told."""
    if found.outcome is not Outcome.EQUIVALENT:
        return False
    mutation = applied.mutation
    if mutation.kind == "file":
        return mutation.place[0] != "seg-00000.safetensors" or applied.hits_a_tensor
    if mutation.role == "perturbed":  # it only says how much rounding explains
        return mutation.place[:2] == ["manifest", "perturbed"] and mutation.value in (None, REMOVED)
    if mutation.kind == "data":
        return True
    if mutation.place[0] == "manifest":
        return mutation.place[1:] in (["perturbed"], ["world_size"], ["rank"])
    is_lost = mutation.kind == "lines" and mutation.how == "removed"
    is_other = mutation.kind == "field" and mutation.place[1:2] in (["id"], ["dtype"], ["shape"])
    return (is_lost or is_other) and _is_needed(applied) and found.counts() == clean.counts()


def _is_needed(applied: Applied) -> bool:
    """Whether a verdict needs the record that was changed: it has bytes, and nobody repeats it."""
    line = applied.line
    if line is None or line.key != journal.RECORD or "at" not in line.value:
        return False
    return not line.value.get("recompute") and not applied.is_repeated(line.value)
