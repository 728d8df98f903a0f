"""Correct runs in low precision, then bugs and their twins; writes docs/reference/lowprecision.md.

$ python -m benchmarks.lowprecision [--only REGEX]      (with it, the page is not written)

Correct runs that are in benchmarks/lowprecision/clean.json are not run again.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from benchmarks.bugs.__main__ import pool_of
from benchmarks.bugs.table import Row
from benchmarks.lowprecision.grid import PAGE, Clean, checked, read, write
from benchmarks.lowprecision.table import page
from benchmarks.pages import table_of
from ttrace.lab.functions import WorkerPool
from ttrace.report.wording import place
from zoo.bug import Family
from zoo.lowprecision.grid import cases
from zoo.registry import bugs
from zoo.trials import Trials

JSON = Path(__file__).with_name("clean.json")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing correct was alarmed at, and every bug was named where it is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowprecision", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases and bugs that have it")
    only = parser.parse_args(arguments).only
    pool = pool_of(2)
    try:
        found = _grid(only, pool)
        rows = _bugs(only, pool)
    finally:
        pool.close()
    text = page(found, rows, table_of(PAGE.read_text(), "power"))
    if only:
        print(text)
    else:
        PAGE.write_text(text)
    is_right = all(row.is_right for row in rows)
    return 0 if is_right and all(each.is_silent for each in found) else 1


def _grid(only: str, pool: WorkerPool) -> list[Clean]:
    found, chosen = read(JSON), cases(only=lambda case: bool(re.search(only, case.key)))
    for each in checked([case for case in chosen if case.key not in found], pool):
        said = "silent" if each.is_silent else f"{each.alarms} ALARMS"
        print(f"{each.key}: {each.largest:.2f} {said} {each.largest_id}", flush=True)
        found[each.key] = each
        write(JSON, found.values())
    return [found[case.key] for case in chosen if case.key in found]


def _bugs(only: str, pool: WorkerPool) -> list[Row]:
    rows = []
    with TemporaryDirectory() as folder:
        trials = Trials(pool, Path(folder))
        for bug in bugs(Family.LOW_PRECISION):
            if not re.search(only, bug.name):
                continue
            row = Row(bug=bug, buggy=trials.bug(bug), twin=trials.twin(bug))
            named = "; ".join(map(place, row.buggy.culprits)) or "nothing"
            print(f"{bug.name}: {named}{'' if row.is_exact else ' (wrong)'}", flush=True)
            rows.append(row)
    return rows


if __name__ == "__main__":
    sys.exit(main())
