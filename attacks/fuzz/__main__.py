"""Runs the fuzzer on all cores and prints what it counted."""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import sys
import time
from collections import Counter
from pathlib import Path

import torch

from attacks.fuzz.fuzzing import Tally, fuzz

_SHOWN = 20  # violations
_ADDRESS_BYTES = 24 << 30


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
        return pool.starmap(_fuzz, shares)


def _fuzz(traces: int, reports: int, seeded: int) -> Tally:
    """In a process of its own, which cannot take all memory of the machine."""
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESS_BYTES, _ADDRESS_BYTES))
    return fuzz(traces, reports, seeded)


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
