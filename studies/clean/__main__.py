"""Runs the cases that are not yet in studies/clean/clean.json; each is written when it is done.

$ python -m studies.clean [--only first-contact] [--shard 1/4] [--jobs N] [--limit-seconds 600]
"""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from rich.text import Text

from benchmarks.jobs import CONSOLE, in_parallel
from studies.clean.check import Check, read_checks, write_checks
from studies.clean.design import design
from studies.clean.job import Done, perform, prepare, tasks_of
from studies.clean.table import JSON, NEAR
from zoo.clean.case import Case


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every case that was begun ran, whatever TTrace said of it."""
    asked = _parser().parse_args(arguments)
    known = {check.name: check for check in read_checks(asked.out)}
    chosen = _sharded(
        [case for case in design(asked.device) if re.search(asked.only, case.key)], asked.shard
    )
    left = [case for case in chosen if asked.again or (case.key, True) not in known]
    if asked.list:
        print("\n".join(case.key for case in left))
        return 0
    tasks = tasks_of(left, until=time.time() + asked.limit_seconds)
    failed = 0
    for _, done in in_parallel("references", tasks, perform, prepare, asked.jobs):
        known |= {check.name: check for check in done.checks}
        write_checks(asked.out, list(known.values()))
        failed += len(done.errors)
        _tell(done)
    _tell_all(
        [known[case.key, i] for case in chosen for i in (False, True) if (case.key, i) in known]
    )
    return 1 if failed else 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m studies.clean", description=__doc__)
    parser.add_argument("--only", default="", metavar="REGEX", help="cases whose key has it")
    parser.add_argument("--shard", default="1/1", metavar="I/N", help="the I-th of N parts")
    parser.add_argument("--device", default="cpu", help="cuda: also cases that need a GPU")
    parser.add_argument("--jobs", type=int, default=1, help="references at a time, 4 ranks each")
    parser.add_argument("--out", type=Path, default=JSON, help="where checks are kept")
    parser.add_argument("--limit-seconds", type=float, default=float("inf"), metavar="S")
    parser.add_argument("--again", action="store_true", help="also cases that are in the file")
    parser.add_argument("--list", action="store_true", help="say which cases are left, and end")
    return parser


def _sharded(cases: Sequence[Case], shard: str) -> list[Case]:
    """Every N-th reference with all that is compared with it."""
    number, _, count = shard.partition("/")
    tasks = tasks_of(cases, until=0.0)[int(number) - 1 :: int(count)]
    return [case for task in tasks for case in task.cases]


def _tell(done: Done) -> None:
    for check in done.checks:
        how = "isolated" if check.isolated else "plain"
        said = f"ALARM {'; '.join(check.alarmed)}" if check.alarms else ""
        line = f"{check.key} {how}: {check.largest:.2f} {check.largest_id} {said}"
        style = "red" if check.alarms else "yellow" if check.largest > NEAR else ""
        CONSOLE.print(Text(line, style=style), soft_wrap=True)
    for key, error in done.errors.items():
        CONSOLE.print(Text(f"{key}: ERROR {error}", style="red"), soft_wrap=True)


def _tell_all(checks: Sequence[Check]) -> None:
    alarms = sum(check.alarms > 0 for check in checks)
    largest = max((check.largest for check in checks), default=0.0)
    print(f"{alarms} of {len(checks)} checks have alarms; the largest ratio is {largest:.3g}")


if __name__ == "__main__":
    sys.exit(main())
