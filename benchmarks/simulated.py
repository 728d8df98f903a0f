"""Layouts of 64 simulated ranks on this machine: found or silent, seconds, and peak memory.

    $ python -m benchmarks.simulated
    | layout and bug | answer | seconds | peak memory |
    | dp 64 x tp 1, correct | EQUIVALENT | 14.5 | 527 MB |

A correct layout must pass; of a wrong one the place must be named. docs/how-to/simulated-ranks.md
gets the table with --record. On a machine of many cores, `--jobs 5` takes as long as one case.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

from benchmarks.pages import replaced
from benchmarks.record import processor
from ttrace.report.overall import headline
from zoo.simulated import CASES, Measured, is_right, measure

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "simulated-ranks.md"
_HEADER = "| layout and bug | answer | seconds | peak memory |\n|---|---|---|---|"


def row(measured: Measured) -> str:
    answer = headline(measured.result).partition(" (")[0]
    megabytes = measured.peak_bytes / 1e6
    return f"| {measured.case.name} | {answer} | {measured.seconds:.0f} | {megabytes:.0f} MB |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.simulated", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time")
    parser.add_argument("--record", action="store_true", help="write the table into the page")
    options = parser.parse_args()
    print(_HEADER)
    lines, wrong = [], []
    # Each in a process of its own, whose memory is that of this case.
    spawn = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(options.jobs, spawn, max_tasks_per_child=1) as fresh:
        for measured in fresh.map(measure, CASES):
            lines.append(row(measured))
            print(lines[-1], flush=True)
            wrong += [] if is_right(measured) else [measured.case.name]
    if wrong:
        print(f"not as expected: {'; '.join(wrong)}", file=sys.stderr)
        return 1
    if options.record:
        table = f"{_HEADER}\n" + "\n".join(lines) + f"\n\nOn {processor()}."
        PAGE.write_text(replaced(PAGE.read_text(), "simulated", table))
    return 0


if __name__ == "__main__":
    sys.exit(main())
