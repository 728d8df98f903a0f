"""Tries the bugs of released packages, and writes docs/reference/wild.md.

$ python -m benchmarks.wild [NAME ...]      (with names: those alone, and nothing is written)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from benchmarks.wild.table import Row, page
from ttrace.errors import TTraceError
from zoo.trials import Trials
from zoo.wild.bug import Answer, WildBug
from zoo.wild.bugs import WILD
from zoo.wild.trial import try_repaired, try_wild
from zoo.workers import worker_pool

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "wild.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every bug that is there was named exactly, and its twin was silent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.wild", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    if unknown := set(names) - WILD.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known: {', '.join(WILD)}")
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    pool = worker_pool(2)  # before torch starts threads: its processes are forked
    try:
        with tempfile.TemporaryDirectory() as folder:
            trials = Trials(pool, Path(folder))
            rows = [_row(trials, WILD[name]) for name in names or WILD]
    finally:
        pool.close()
    if not names:
        PAGE.write_text(page(rows))
        print(f"written to {PAGE}")
    return 0 if all(row.is_right for row in rows) else 1


def _row(trials: Trials, bug: WildBug) -> Row:
    row = _tried(trials, bug)
    print(f"{'ok   ' if row.is_right else 'WRONG'} {bug.name}: {row.said}", flush=True)
    return row


def _tried(trials: Trials, bug: WildBug) -> Row:
    if bug.installed is None:
        return Row(bug=bug, error=f"not run: {bug.package} is not installed")
    answer, printed = bug.proved()
    if answer is not Answer.CONFIRMED:
        told = (printed.strip().splitlines() or [""])[-1]
        return Row(bug=bug, proof=answer, error=f"not run: {answer.value}, {told}")
    try:
        return Row(
            bug=bug, proof=answer, wrong=try_wild(trials, bug), twin=try_repaired(trials, bug)
        )
    except TTraceError as error:
        return Row(bug=bug, proof=answer, error=str(error).strip().splitlines()[-1])


if __name__ == "__main__":
    sys.exit(main())
