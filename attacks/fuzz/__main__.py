"""Runs the fuzzer on all cores and prints what it counted."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed, settings

from attacks.fuzz import results
from attacks.fuzz.applied import link_copy
from attacks.fuzz.base import Base, make, record
from attacks.fuzz.cases import Ran, Violation, run_trace
from attacks.fuzz.mutations import Mutation, mutations
from ttrace.analysis.check import check

SEEDS = Path(__file__).with_name("seeds.json")
_SHOWN = 20  # violations
_ADDRESS_BYTES = 24 << 30


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


def main() -> int:
    """Run it; 1 where anything is wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--traces", type=int, default=20_000)
    parser.add_argument("--results", type=int, default=5_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--passes", action="store_true", help="list what passes as equivalent")
    parser.add_argument("--keep", type=Path, help="write the cases of violations here")
    chosen = parser.parse_args()
    started = time.perf_counter()
    tallies = _in_processes(chosen)
    total = Tally()
    for tally in tallies:
        total.cases += tally.cases
        total.came_to += tally.came_to
        total.violations += tally.violations
    _tell(total, time.perf_counter() - started, passes=chosen.passes)
    if chosen.keep:
        chosen.keep.write_text(json.dumps([v.case for v in total.violations], indent=1) + "\n")
    return 1 if total.violations else 0


def _in_processes(chosen: argparse.Namespace) -> list[Tally]:
    torch.set_num_threads(1)
    forking = multiprocessing.get_context("fork")
    with forking.Pool(chosen.jobs) as pool:
        shares = [
            (chosen.traces // chosen.jobs, chosen.results // chosen.jobs, chosen.seed + job)
            for job in range(chosen.jobs)
        ]
        return pool.starmap(work, shares)


def work(traces: int, reports: int, seeded: int) -> Tally:
    """So many cases of both kinds, after those that once went wrong."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
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


def _tell(total: Tally, seconds: float, *, passes: bool) -> None:
    if passes:
        equivalent = {about: n for (about, to), n in total.came_to.items() if to == "equivalent"}
        for about, count in sorted(equivalent.items()):
            print(f"{count:>7}  equivalent: {about}")
    for violation in total.violations[:_SHOWN]:
        print(f"\n{violation.kind}: {json.dumps(violation.case)[:600]}\n{violation.told}")
    outcomes: Counter[str] = Counter()
    for (_, to), count in total.came_to.items():
        outcomes[to] += count
    kinds = Counter(violation.kind for violation in total.violations)
    print(f"\n{total.cases['traces']} mutated traces, {total.cases['results']} mutated results")
    print(", ".join(f"{count} {to}" for to, count in outcomes.most_common()))
    print(f"{seconds:.0f} s")
    for kind in ("traceback", "slow", "memory", "silent"):
        print(f"{kinds[kind]:>7}  {kind}")


if __name__ == "__main__":
    sys.exit(main())
