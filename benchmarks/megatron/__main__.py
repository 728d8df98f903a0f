"""Runs the cases that are not yet in benchmarks/megatron.json; every finished one is written there.

$ python -m benchmarks.megatron [layouts | bugs | NAME ...] [--jobs N] [--again]
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.text import Text

from benchmarks.jobs import CONSOLE, in_parallel
from benchmarks.megatron.job import perform, quieten
from benchmarks.megatron.table import JSON, exact, named, silent, verdict
from ttrace.errors import UsageError

os.environ["CUDA_VISIBLE_DEVICES"] = ""  # the patches for CPU are for machines without a GPU

if TYPE_CHECKING:
    from benchmarks.megatron.cases import Case


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when every case that was asked for has been run without an error."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.megatron", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", help="layouts, bugs, or single cases")
    parser.add_argument("--jobs", type=int, default=1, help="cases at a time, up to 8 ranks each")
    parser.add_argument("--again", action="store_true", help="also cases that are in the file")
    parser.add_argument("--json", type=Path, default=JSON, help="where results are kept")
    asked = parser.parse_args(arguments)
    from benchmarks.megatron.cases import all_cases, chosen

    quieten()
    known = all_cases()
    found = _load(asked.json, known)
    try:
        cases = chosen(known, asked.names)
    except UsageError as error:
        parser.error(str(error))
    left = [c for c in cases if asked.again or "seconds" not in found[c.table][c.name]]
    failed = _run(left, asked.jobs, found, asked.json)
    return 1 if failed else 0


def _run(
    cases: Sequence[Case], jobs: int, found: dict[str, dict[str, Any]], file: Path
) -> list[str]:
    """Names of cases that ended with an error."""
    failed = []
    with tempfile.TemporaryDirectory(prefix="megatron-") as folder:
        work = partial(perform, folder)
        for done, (case, entry) in enumerate(in_parallel("cases", cases, work, quieten, jobs), 1):
            found[case.table][case.name] = entry
            _save(found, file)
            told = f"{done} of {len(cases)}: {case.name}: {_told(case, entry)}"
            CONSOLE.print(Text(told), soft_wrap=True)
            if "error" in entry:
                failed.append(case.name)
    return failed


def _told(case: Case, entry: dict[str, Any]) -> str:
    if "error" in entry:
        return f"ERROR {entry['error']}"
    if case.bug:
        answer = "right" if exact(entry) else "WRONG"
        twin = silent(entry["twin"])
        return f"{answer}: {named(entry)}; twin {twin}; {entry['seconds']:.0f} s"
    return f"{verdict(entry)}, {float(entry['largest']):.2f}, {entry['seconds']:.0f} s"


def _load(file: Path, known: Sequence[Case]) -> dict[str, dict[str, Any]]:
    """In the order of the cases; one that was not run yet is empty."""
    read = json.loads(file.read_text()) if file.exists() else {}
    found: dict[str, dict[str, Any]] = {}
    for case in known:
        table = found.setdefault(case.table, {})
        table[case.name] = read.get(case.table, {}).get(case.name, {})
    return found


def _save(found: dict[str, dict[str, Any]], file: Path) -> None:
    """All or nothing: a run may be ended at any time."""
    fresh = file.with_suffix(".new")
    ran = {table: {k: v for k, v in rows.items() if v} for table, rows in found.items()}
    fresh.write_text(json.dumps(ran, indent=1) + "\n")
    fresh.replace(file)


if __name__ == "__main__":
    sys.exit(main())
