"""What `ttrace plan --estimate` says beside what was measured; the page docs/reference/estimate.md.

    $ python -m benchmarks.estimate
    3 to 12 layers, full: 2,338 records (1.0000), 104,567,296 bytes (1.0000), recording ...

Bytes and records do not depend on the machine. Seconds do, and on who else uses it: write the page
on a quiet one.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.estimate.checks import (
    MADE_UP,
    OF_VALUES,
    CheckOutcome,
    coefficients,
    made_up,
    of_values,
)
from benchmarks.estimate.runs import CASES, Outcome, outcome
from benchmarks.power.table import replaced
from benchmarks.record import processor
from ttrace.analysis.estimate.checking import READ_SECONDS, check_memory, check_seconds
from ttrace.core.estimate import LowHigh, Rates
from ttrace.lab.rates import measured_rates
from ttrace.trace.fingerprint import NAME

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "estimate.md"
_BUSY = 0.5  # chosen: processes for each core that others have running
_RATIO = "predicted / measured"
_OF_RUNS = (
    *("from a small trace to", "capture", "ranks", "records", _RATIO, "bytes", _RATIO),
    *("recording, s", "predicted, s"),
)
_OF_CHECKS = (
    *("traces", "records", "tensors measured", "MB read", "CPU, s", "predicted, s"),
    *("peak, MB", "predicted, MB"),
)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.estimate", description=__doc__)
    parser.add_argument("--write", action="store_true", help="write the page")
    parser.add_argument("--only", choices=["runs", "checks"], help="one of both tables")
    options = parser.parse_args()
    tables, where = {}, _machine()
    with tempfile.TemporaryDirectory(prefix="estimate-") as name:
        rates = {
            form: measured_rates(form, None if form == "full" else NAME, "cpu", Path(name))
            for form in ("full", "fingerprint")
        }
    if options.only != "checks":
        tables["runs"] = _run_table(_outcomes(rates), where)
    if options.only != "runs":
        tables["checks"] = _check_table(_checks(), rates["full"], where)
        print(tables["checks"])
    text = PAGE.read_text()
    for name, table in tables.items():
        text = replaced(text, name, table)
    if options.write:
        PAGE.write_text(text)
    return 0


def _machine() -> str:
    """Where this is measured, and whether alone."""
    is_busy = os.getloadavg()[0] > _BUSY * (os.cpu_count() or 1)
    told = " Others used it meanwhile: a quiet machine takes fewer seconds." if is_busy else ""
    return f"Measured on {processor()}.{told}"


def _outcomes(rates: dict[str, Rates]) -> list[Outcome]:
    found = []
    for case in CASES:
        with tempfile.TemporaryDirectory(prefix="estimate-") as name:
            found.append(outcome(case, Path(name), rates[case.form]))
        last, predicted = found[-1], found[-1].predicted
        seconds = predicted.recording_seconds
        print(
            f"{last.name}, {last.form}: {last.records:,} records "
            f"({_ratio(predicted.records, last.records)}), {last.size_bytes:,} bytes "
            f"({_ratio(predicted.candidate_bytes, last.size_bytes)}), recording "
            f"{last.recording_seconds:.2f} s (predicted {seconds.low:.2f} to {seconds.high:.2f})",
            flush=True,
        )
    return found


def _checks() -> list[CheckOutcome]:
    found = []
    for size in (*MADE_UP, *OF_VALUES):
        with tempfile.TemporaryDirectory(prefix="estimate-") as name:
            folder = Path(name)
            made = of_values(folder, size) if isinstance(size, str) else made_up(folder, *size)
        found.append(made)
        print(
            f"{made.name}: {made.taken.cpu_seconds:.1f} s, {made.taken.peak_mb:,.0f} MB", flush=True
        )
    return found


def _ratio(predicted: LowHigh, measured: float) -> str:
    low, high = (f"{end / measured:.4f}" for end in (predicted.low, predicted.high))
    return low if low == high else f"{low} to {high}"


def _headed(columns: Sequence[str]) -> str:
    return f"| {' | '.join(columns)} |\n{'|---' * len(columns)}|"


def _run_table(outcomes: Sequence[Outcome], where: str) -> str:
    lines = [_headed(_OF_RUNS)]
    for row in outcomes:
        found = row.predicted
        lines.append(
            f"| {row.name} | {row.form} | {row.ranks} | {row.records:,} "
            f"| {_ratio(found.records, row.records)} | {row.size_bytes:,} "
            f"| {_ratio(found.candidate_bytes, row.size_bytes)} | {row.recording_seconds:.2f} "
            f"| {found.recording_seconds.low:.2f} to {found.recording_seconds.high:.2f} |"
        )
    return f"{where}\n\n" + "\n".join(lines)


def _check_table(outcomes: Sequence[CheckOutcome], rates: Rates, where: str) -> str:
    speed = rates.read_seconds / READ_SECONDS
    lines = [
        f"{where} It read a record in {rates.read_seconds * 1e6:.1f} us of CPU time.\n",
        _headed(_OF_CHECKS),
    ]
    for row in outcomes:
        work, taken = row.work, row.taken
        seconds, memory = check_seconds(work, 1, speed), check_memory(work, 1).times(2**-20)
        lines.append(
            f"| {row.name} | {work.records:,.0f} | {work.pairs:,.0f} "
            f"| {work.stored_bytes / 1e6:,.0f} | {taken.cpu_seconds:.1f} "
            f"| {seconds.low:.1f} to {seconds.high:.1f} | {taken.peak_mb:,.0f} "
            f"| {memory.low:,.0f} to {memory.high:,.0f} |"
        )
    of_seconds, of_memory = coefficients(outcomes)
    names = ("to start", "a record", "a tensor measured", "a byte read")
    told = ", ".join(f"{n:.2g} {name}" for name, n in zip(names, of_seconds, strict=True))
    held = ", ".join(f"{n:.2g} {name}" for name, n in zip(names, of_memory, strict=False))
    lines.append(f"\nFitted to these: seconds, {told}; bytes of memory, {held}.")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
