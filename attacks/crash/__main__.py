"""Kills writers at every call to the file system, and counts what was lost: make crash.

$ python -m attacks.crash --cases 2500 --jobs 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections.abc import Sequence

import torch

from attacks.crash.disk import DEATHS, Fault
from attacks.crash.points import Point, Ran, recorded_calls, run_point

_SHOWN = 20  # violations


def points(cases: int, seed: int) -> list[Point]:
    """Every fault at every call of one writer, then pairs with one that goes on; or a sample."""
    calls = recorded_calls()
    single = [
        Point(at, fault) for at, call in enumerate(calls) for fault in Fault if call.can_have(fault)
    ]
    drawn = random.Random(seed)
    if cases <= len(single):
        return drawn.sample(single, cases)
    deaths = [point for point in single if point.fault in DEATHS]
    chosen = dict.fromkeys(single)
    while len(chosen) < cases:
        first, second = drawn.choice(deaths), drawn.choice(single)
        chosen[first._replace(then=(second.at, second.fault))] = None
    return list(chosen)


def attack(chosen: Sequence[Point], jobs: int) -> dict[Point, Ran]:
    """What became of the writer at each point."""
    torch.set_num_threads(1)  # nothing may run when the writers are forked
    if jobs == 1:
        return dict(zip(chosen, map(run_point, chosen), strict=True))
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        return dict(zip(chosen, pool.map(run_point, chosen, chunksize=16), strict=True))


def tell(found: dict[Point, Ran], seconds: float) -> None:
    """The table of counts, after what was wrong."""
    for point, ran in [pair for pair in found.items() if pair[1].wrong][:_SHOWN]:
        print(f"{point}\n    " + "\n    ".join(ran.wrong))
    by_kind: dict[str, list[Ran]] = {}
    for point, ran in found.items():
        by_kind.setdefault(_kind(point), []).append(ran)
    print(f"{'what happened to the writer':<52}{'points':>8}{'records':>9}{'wrong':>7}")
    for kind, rans in {**by_kind, "in all": list(found.values())}.items():
        records, wrong = sum(ran.acknowledged for ran in rans), sum(bool(r.wrong) for r in rans)
        print(f"{kind:<52}{len(rans):>8,}{records:>9,}{wrong:>7,}")
    print(f"records: acknowledged by writers, then looked for; {seconds:.0f} s")


def _kind(point: Point) -> str:
    return point.fault.value if point.then is None else "killed, then any of these while it went on"


def main() -> int:
    """Run it; 1 where anything was lost or wrong."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cases", type=int, default=2_500)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    asked = parser.parse_args()
    started = time.perf_counter()
    found = attack(points(asked.cases, asked.seed), asked.jobs)
    tell(found, time.perf_counter() - started)
    return 1 if any(ran.wrong for ran in found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
