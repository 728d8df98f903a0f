"""Runs every benchmark and compares its ratios with those that were recorded last.

$ make bench                        fails where a ratio got worse by more than a third
$ python -m benchmarks check        this one only
$ python -m benchmarks --record     a new record, and the page of the documentation made from it
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from benchmarks import capture, check, compare_pass, generate, record, storage
from benchmarks.figures import FIGURES, Results, regressions

BENCHMARKS = {
    benchmark.__name__.rpartition(".")[2]: benchmark.run
    for benchmark in (storage, compare_pass, generate, capture, check)
}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", help=f"of {', '.join(BENCHMARKS)}; all by default")
    parser.add_argument("--record", action="store_true", help="write results.json and the page")
    options = parser.parse_args()
    if unknown := set(options.names) - set(BENCHMARKS):
        parser.error(f"there is no benchmark {', '.join(sorted(unknown))}")
    if options.record and options.names:
        parser.error("a record is of all benchmarks: leave their names away")
    measured: dict[str, object] = {}
    for name in options.names or BENCHMARKS:
        print(f"running {name} ...", flush=True)
        measured[name] = BENCHMARKS[name]()
        print(json.dumps(measured[name], indent=1), flush=True)
    known = record.records()
    if options.record:
        record.write([*known, record.record_now(measured)])
        print(f"written to {record.RECORDS} and {record.PAGE}")
        return 0
    return compare(known, measured, record.processor())


def compare(known: Sequence[record.Record], measured: Results, machine: str) -> int:
    """Every figure beside the one recorded last; 1 where one got worse by more than a third."""
    last = record.comparable(known, machine)
    if last is None:
        print("nothing is recorded to compare with: python -m benchmarks --record")
        return 0
    if last.processor != machine:
        print(f"nothing is recorded of {machine}: compared with {last.processor}")
    for figure in FIGURES:
        if now := figure.shown(measured):
            print(f"{figure.pattern:<48} {now:>12}   was {figure.shown(last.results) or 'absent'}")
    worse = regressions(last.results, measured)
    if worse:
        listed = "; ".join(map(str, worse))
        print(f"FAILED, worse by more than a third since {last.commit} of {last.date}: {listed}")
        return 1
    print(f"nothing is worse by more than a third since {last.commit} of {last.date}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
