"""Runs all cases and writes docs/reference/bugs.md.

$ python -m benchmarks.bugs [NAME ...]      (with names: those cases, and nothing is written)
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch
from rich.console import Console
from rich.progress import Progress

from benchmarks.bugs.catalogue import CASES, DEMO, PAIRS, SINGLE
from benchmarks.bugs.flow import Outcome, run_case
from benchmarks.bugs.table import Row, page
from zoo.native.case import Case, Train
from zoo.workers import WorkerPool

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "bugs.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every bug was named exactly and every twin was silent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bugs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    names = parser.parse_args(arguments).names
    sections = {"One bug": SINGLE, "Two bugs at once": PAIRS, "The demo's bugs": DEMO}
    chosen = {
        title: [case for case in cases if not names or case.name in names]
        for title, cases in sections.items()
    }
    rows = _run(chosen)
    text = page(rows)
    if names:
        print(text)
    else:
        PAGE.write_text(text)
        print(f"written to {PAGE}")
    return 0 if all(row.is_right for section in rows.values() for row in section) else 1


def _run(sections: dict[str, list[Case]]) -> dict[str, list[Row]]:
    console = Console(stderr=True)
    rows: dict[str, list[Row]] = {title: [] for title in sections}
    twins: dict[Train, Outcome] = {}  # cases of one family have the same
    pool = _pool()
    try:
        with Progress(console=console) as progress:
            task = progress.add_task("", total=sum(map(len, sections.values())))
            for title, cases in sections.items():
                for case in cases:
                    progress.update(task, description=case.name)
                    with tempfile.TemporaryDirectory() as folder:
                        if case.train not in twins:
                            twin = run_case(case, pool, Path(folder) / "twin", with_bugs=False)
                            twins[case.train] = twin
                        buggy = run_case(case, pool, Path(folder) / "bug", with_bugs=True)
                        progress.advance(task)
                    row = Row(case=case, buggy=buggy, twin=twins[case.train])
                    rows[title].append(row)
                    answer = "right" if row.is_right else f"not {case.expected}"
                    console.print(f"{case.name}: {buggy.named} {answer}, {buggy.seconds:.1f} s")
    finally:
        pool.close()
    return {title: found for title, found in rows.items() if found}


def _pool() -> WorkerPool:
    """The tests' pool, made before torch starts threads: its processes are forked."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    return WorkerPool(max(case.world_size for case in CASES))


if __name__ == "__main__":
    sys.exit(main())
