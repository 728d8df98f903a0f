"""Kills writers at every call to the file system, and counts what was lost: make crash.

$ python -m attacks.crash --cases 2500 --jobs 2
"""

from __future__ import annotations

import argparse
import multiprocessing
import random
import sys
import time
from collections import Counter
from collections.abc import Sequence

import torch

from attacks.crash.disk import DEATHS, Fault
from attacks.crash.points import Point, recorded_calls, run_point

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
    pairs: list[Point] = []
    while len(single) + len(pairs) < cases:
        first, second = drawn.choice(deaths), drawn.choice(single)
        pairs.append(first._replace(then=(second.at, second.fault)))
    return single + pairs


def attack(chosen: Sequence[Point], jobs: int) -> dict[Point, list[str]]:
    """What was wrong at each point."""
    torch.set_num_threads(1)  # nothing may run when the writers are forked
    if jobs == 1:
        return dict(zip(chosen, map(run_point, chosen), strict=True))
    with multiprocessing.get_context("fork").Pool(jobs) as pool:
        return dict(zip(chosen, pool.map(run_point, chosen, chunksize=16), strict=True))


def tell(found: dict[Point, list[str]], seconds: float) -> None:
    """The table of counts, after what was wrong."""
    wrong = {point: faults for point, faults in found.items() if faults}
    for point, faults in list(wrong.items())[:_SHOWN]:
        print(f"{point}\n    " + "\n    ".join(faults))
    counted = Counter((_kind(point), bool(faults)) for point, faults in found.items())
    print(f"{'what happened to the writer':<56}{'points':>8}{'wrong':>8}")
    for kind in dict.fromkeys(map(_kind, found)):
        bad = counted[kind, True]
        print(f"{kind:<56}{counted[kind, False] + bad:>8,}{bad:>8,}")
    print(f"{'in all':<56}{len(found):>8,}{len(wrong):>8,}   {seconds:.0f} s")


def _kind(point: Point) -> str:
    return point.fault.value if point.then is None else "killed, and again while it went on"


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
    return 1 if any(found.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
