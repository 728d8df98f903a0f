"""Fuzzing in one process: cases that went wrong once, then so many new ones."""

from __future__ import annotations

import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from attacks.fuzz import results
from attacks.fuzz.applied import link_copy
from attacks.fuzz.base import Base, make, record
from attacks.fuzz.cases import Ran, Violation, run_trace
from attacks.fuzz.mutations import Mutation, mutations
from ttrace.analysis.check import check

SEEDS = Path(__file__).with_name("seeds.json")


@dataclass(slots=True)
class Tally:
    """What one process counted."""

    cases: Counter[str] = field(default_factory=Counter)
    came_to: Counter[tuple[str, str]] = field(default_factory=Counter)
    violations: list[Violation] = field(default_factory=list)

    def add(self, what: str, about: str, ran: Ran) -> None:
        self.cases[what] += 1
        self.came_to[about, ran.came_to] += 1
        self.violations += ran.violations


def fuzz(traces: int, reports: int, seeded: int) -> Tally:
    """So many cases of both kinds, after those that once went wrong."""
    tally = Tally()
    with tempfile.TemporaryDirectory(prefix="ttrace-fuzz-", dir=_memory()) as folder:
        for number, base in enumerate((make(Path(folder) / "made"), record(Path(folder) / "real"))):
            _fuzz_traces(base, Path(folder) / f"copy{number}", traces // 2, seeded, tally)
    _fuzz_results(reports, seeded, tally)
    return tally


def _fuzz_traces(base: Base, copy: Path, count: int, seeded: int, tally: Tally) -> None:
    link_copy(base.folder, copy)
    clean = check(
        base.trace("reference"), base.trace("candidate"), perturbed=[base.trace("perturbed")]
    )
    assert clean.exit_code == 0, clean

    def try_one(mutation: Mutation) -> None:
        tally.add("traces", mutation.about, run_trace(copy, base, clean, mutation))

    for case in _kept(base.name):
        try_one(Mutation(**case))
    _many(try_one, mutations(base), count, seeded)


def _fuzz_results(count: int, seeded: int, tally: Tally) -> None:
    made = results.made()

    def try_one(edit: results.Edit) -> None:
        tally.add("results", f"result {edit.about}", results.run(made, edit))

    for case in _kept("result"):
        try_one(results.Edit(**case))
    _many(try_one, results.edits(made), count, seeded)


def _many(try_one: Any, strategy: Any, count: int, seeded: int) -> None:
    if not count:
        return
    chosen = settings(
        max_examples=count,
        database=None,
        deadline=None,
        phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    everything: Any = given(strategy)
    seed(seeded)(chosen(everything(try_one)))()


def _kept(name: str) -> list[dict[str, Any]]:
    """Cases that went wrong once."""
    cases = [case for case in json.loads(SEEDS.read_text()) if case["base"] == name]
    return [{key: case[key] for key in case if key != "base"} for case in cases]


def _memory() -> str | None:
    return "/dev/shm" if Path("/dev/shm").is_dir() else None
