"""All faults of a program, the runs with each of them, and what was wrong with those."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import cycle
from pathlib import Path
from typing import NamedTuple

from attacks.faults.case import CaseResult, Ran, run
from attacks.faults.places import KINDS, Counted, Fault
from attacks.faults.programs import ALONE, Attacked
from attacks.faults.ranks import GROUPED
from ttrace.analysis.isolate import write_plans

PROGRAMS = {program.name: program for program in (*ALONE, *GROUPED)}
SAID = "training goes on"  # in every line that tells of a fault
_IGNORED = "Exception ignored in: <generator"  # which was dropped: Python says so by itself


class Case(NamedTuple):
    """One run with one fault."""

    program: str
    fault: Fault


class Violation(NamedTuple):
    """`kind` is a column of the table."""

    kind: str
    case: str
    what: str


@dataclass(frozen=True, slots=True)
class Expected:
    """What a program does untraced, and traced without a fault."""

    program: Attacked
    untraced: CaseResult
    traced: CaseResult
    plan: Path | None

    @property
    def counted(self) -> Counted:
        counted = self.traced.ranks[0].counted
        assert counted is not None
        return counted

    def violations(self) -> Iterator[Violation]:
        """A program must be right to begin with: traced, it is what it is."""
        for ran in (*self.untraced.ranks, *self.traced.ranks):
            yield from _of_rank(ran, "no fault", self.program)
        if self.program.exact and self.untraced.digest != self.traced.digest:
            yield Violation("changed", f"{self.program.name}: no fault", "numbers are others")
        if SAID in self.traced.log or self.traced.trace.told:
            yield Violation("unsaid", f"{self.program.name}: no fault", self.traced.log)


@dataclass(slots=True)
class Tally:
    """A row of the table."""

    functions: int = 0
    injected: int = 0
    unreached: int = 0  # faults that the run did not come to this time
    violations: list[Violation] = field(default_factory=list)


def expected(program: Attacked, folder: Path) -> Expected:
    """Run it without a fault; `folder` keeps what an isolated run reads."""
    plan = None
    for name in ("untraced", "traced", "tapped", "plan"):
        (folder / name).mkdir(parents=True)
    untraced = run(program, folder / "untraced", is_traced=False)
    if program.is_isolated:
        tapped = replace(program, settings={"tap": True})
        run(tapped, folder / "tapped")
        plan = folder / "plan"
        write_plans(folder / "tapped" / "trace", folder / "tapped" / "trace", plan)
    traced = run(program, folder / "traced", plan=plan, counts=True)
    return Expected(program, untraced, traced, plan)


def faults(counted: Counted) -> Iterator[Fault]:
    """Every function at its first, second and last call, the first by two kinds of exceptions.

    Kinds take turns: over all programs every function raises every kind.
    """
    turns = cycle(KINDS)
    for place, calls in sorted(counted.calls.items()):
        for nth in (1, *sorted({1, 2, calls})):
            if nth <= calls:
                yield Fault(place, nth, next(turns))
    for place, returns in sorted(counted.returns.items()):
        for nth in sorted({1, returns}):
            yield Fault(place, nth, next(turns), at_return=True)


def sampled(cases: Sequence[Case], most: int | None, seed: int) -> list[Case]:
    if most is None or most >= len(cases):
        return list(cases)
    return random.Random(seed).sample(list(cases), most)


def attack(fault: Fault, known: Expected) -> tuple[bool, list[Violation]]:
    """Whether the run came to the fault, and what was wrong then.

    How often threads that write call something differs from run to run: where a run did not come to
    the last call of another, it is tried at an earlier one.
    """
    found: list[Violation] = []
    while True:
        with tempfile.TemporaryDirectory(prefix="ttrace-faults-") as folder:
            result = run(known.program, Path(folder), plan=known.plan, fault=fault)
        found += _violations(result, fault, known)
        has_fired = result.ranks[0].has_fired
        if has_fired or fault.nth == 1:
            return has_fired, found
        fault = replace(fault, nth=fault.nth // 2)


def _violations(result: CaseResult, fault: Fault, known: Expected) -> Iterator[Violation]:
    name = f"{known.program.name}: {fault}"
    for ran in result.ranks:
        yield from _of_rank(ran, str(fault), known.program)
    if known.program.exact and result.digest != known.untraced.digest:
        yield Violation("changed", name, "numbers are others than without tracing")
    if "Traceback" in result.log and _IGNORED not in result.log:
        yield Violation("unsaid", name, f"the log has a traceback:\n{result.log}")
    said = result.log.count(SAID)
    if said > 1:
        yield Violation("unsaid", name, f"it is said {said} times:\n{result.log}")
    if not result.ranks[0].has_fired:
        return
    is_whole = result.trace.records == known.traced.trace.records
    is_whole &= result.trace.has_end == known.traced.trace.has_end
    if not (said or is_whole or result.trace.told):
        yield Violation("unsaid", name, "nothing says it, and the trace is not whole")
    if said and result.trace.has_end and not (is_whole or result.trace.told):
        yield Violation("unsaid", name, f"the trace does not say it, the log does:\n{result.log}")


def _of_rank(ran: Ran, fault: str, program: Attacked) -> Iterator[Violation]:
    name = f"{program.name}: {fault}"
    if ran.error:
        yield Violation("reached", name, ran.error)
    elif ran.left:
        yield Violation("left", name, ", ".join(ran.left))
