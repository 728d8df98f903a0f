"""Tries all bugs that need no other package, and writes docs/reference/bugs.md.

$ python -m benchmarks.bugs [NAME ...]      (with names: those bugs, and the page is not written)
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

from benchmarks.bugs.table import Row, page
from ttrace.lab.functions import WorkerPool
from ttrace.report import json_file
from ttrace.report.wording import blamed, place
from zoo.bug import Bug, Family
from zoo.registry import bugs
from zoo.trials import Trials
from zoo.workers import worker_pool

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "reference" / "bugs.md"


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every bug was named exactly and every twin was silent."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.bugs", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--results", type=Path, metavar="FOLDER", help="keep every result there")
    chosen_by_user = parser.parse_args(arguments)
    names: Sequence[str] = chosen_by_user.names
    sections = {
        "One bug": [bug for bug in bugs(Family.NATIVE) if not bug.together],
        "Two bugs at once": [bug for bug in bugs(Family.NATIVE) if bug.together],
        "The demo's bugs": list(bugs(Family.DEMO)),
    }
    chosen = {
        title: [bug for bug in listed if not names or bug.name in names]
        for title, listed in sections.items()
    }
    rows = _run(chosen)
    if chosen_by_user.results is not None:
        _keep(rows, chosen_by_user.results)
    text = page(rows)
    if names:
        print(text)
    else:
        PAGE.write_text(text)
        print(f"written to {PAGE}")
    return 0 if all(row.is_right for section in rows.values() for row in section) else 1


def _run(sections: dict[str, list[Bug]]) -> dict[str, list[Row]]:
    console = Console(stderr=True)
    rows: dict[str, list[Row]] = {title: [] for title in sections}
    pool = pool_of(max((bug.ranks for listed in sections.values() for bug in listed), default=1))
    try:
        with tempfile.TemporaryDirectory() as folder, Progress(console=console) as progress:
            trials = Trials(pool, Path(folder))
            task = progress.add_task("", total=sum(map(len, sections.values())))
            for title, listed in sections.items():
                for bug in listed:
                    progress.update(task, description=bug.name)
                    row = Row(bug=bug, buggy=trials.bug(bug), twin=trials.twin(bug))
                    progress.advance(task)
                    rows[title].append(row)
                    console.print(_told(row))
    finally:
        pool.close()
    return {title: found for title, found in rows.items() if found}


def _keep(sections: dict[str, list[Row]], folder: Path) -> None:
    """The result of every bug, from which any form of report can be made."""
    folder.mkdir(parents=True, exist_ok=True)
    for row in (row for rows in sections.values() for row in rows):
        (folder / f"{row.bug.name}.json").write_text(json_file.render(row.buggy.result))


def _told(row: Row) -> str:
    named = "; ".join(map(place, row.buggy.culprits))
    answer = "right" if row.is_right else f"not {', '.join(map(blamed, row.bug.expected))}"
    return f"{row.bug.name}: {named} {answer}, {row.buggy.seconds:.1f} s"


def pool_of(size: int) -> WorkerPool:
    """The tests' pool, made before torch starts threads: its processes are forked."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    return worker_pool(size)


if __name__ == "__main__":
    sys.exit(main())
