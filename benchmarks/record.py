"""The record: what was measured at which commit, and the table of the documentation made from it.

Enters: results, benchmarks/results.json, docs/reference/benchmarks.md. Leaves: both files, grown by
a record. `python -m benchmarks --record` calls this; nothing else writes these numbers.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from benchmarks.figures import FIGURES, Better, Figure, Results

ROOT = Path(__file__).parent.parent
RECORDS = Path(__file__).with_name("results.json")
PAGE = ROOT / "docs/reference/benchmarks.md"
BEGIN = "<!-- written by `python -m benchmarks --record`: begin -->"
END = "<!-- written by `python -m benchmarks --record`: end -->"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """Results of all benchmarks, when and where they were measured."""

    commit: str  # with a + where the tree had changes
    date: str
    processor: str
    versions: str
    results: dict[str, Any]


def records() -> tuple[Record, ...]:
    """All that were recorded, the latest last."""
    if not RECORDS.exists():
        return ()
    return tuple(Record(**data) for data in json.loads(RECORDS.read_text()))


def comparable(known: Sequence[Record], machine: str) -> Record | None:
    """The latest of this machine; of another one where there is none, rather than nothing."""
    same = [record for record in known if record.processor == machine]
    return next(reversed(same or list(known)), None)


def record_now(results: Results) -> Record:
    """These results as of now and of the tree that is checked out."""
    return Record(
        commit=_commit(),
        date=datetime.now(UTC).date().isoformat(),
        processor=processor(),
        versions=f"torch {torch.__version__}, Python {platform.python_version()}",
        results=dict(results),
    )


def write(known: Sequence[Record]) -> None:
    """The record, and the page with the latest of it."""
    RECORDS.write_text(json.dumps([asdict(record) for record in known], indent=1) + "\n")
    PAGE.write_text(with_table(PAGE.read_text(), table(known[-1])))


def with_table(page: str, made: str) -> str:
    """The page with this text between its two markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1:
        raise ValueError(f"{PAGE.name} must hold the two lines {BEGIN!r} and {END!r} once each")
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n{made}{END}{after}"


def table(record: Record) -> str:
    """What was measured beside what is aimed at."""
    rows = "".join(
        f"| {figure.what} | {figure.shown(record.results)} | {_target(figure, record)} |\n"
        for figure in FIGURES
        if figure.values(record.results)
    )
    return (
        f"\nMeasured on {record.date} at commit {record.commit}: {record.processor}, "
        f"{record.versions}.\n\n"
        f"| what | measured | target |\n|---|---|---|\n{rows}\n"
    )


def processor() -> str:
    """What this machine computes with: ratios of another one are not to be compared with it."""
    names = [
        line.partition(":")[2].strip()
        for line in Path("/proc/cpuinfo").read_text().splitlines()
        if line.startswith("model name")
    ]
    return f"{os.cpu_count()} cores of {names[0] if names else platform.machine()}"


def _target(figure: Figure, record: Record) -> str:
    if figure.target is None:
        return ""
    bound = "at least" if figure.better is Better.HIGHER else "at most"
    missed = "" if figure.meets_target(record.results) else ", missed"
    return f"{bound} {figure.target:g}{missed}"


def _commit() -> str:
    commit = _git("rev-parse", "--short", "HEAD")
    return f"{commit}+" if _git("status", "--porcelain", "--untracked-files=no") else commit


def _git(*arguments: str) -> str:
    done = subprocess.run(
        ["git", "-C", str(ROOT), *arguments], capture_output=True, text=True, check=True
    )
    return done.stdout.strip()
