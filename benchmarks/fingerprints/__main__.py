"""`ttrace check` of fingerprints of many layers on many ranks: seconds, and peak memory.

    $ python -m benchmarks.fingerprints
    64 layers, 64 ranks: 506,048 records, 1,043 MB; 16.0 s, 557 MB; with a wrong shard ...

Traces are made up (traces.py), checked by the command that people run, on one core, and removed. A
candidate that is right must pass; one of which a single shard is wrong must fail, and the module
with that shard must be the one that is named. docs/reference/fingerprints.md gets the table.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path

from benchmarks.pages import replaced
from benchmarks.record import processor
from zoo.made_up.checks import Checked, checked
from zoo.made_up.traces import (
    Wrong,
    write_candidate,
    write_reference,
    write_spoilt,
)
from zoo.made_up.values import Mesh

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "fingerprints.md"
SIZES = ((16, Mesh(tp=4, dp=4)), (64, Mesh(tp=4, dp=4)), (64, Mesh(tp=4, dp=16)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One size of the table."""

    layers: int
    ranks: int
    records: int
    megabytes: float
    clean: Checked
    wrong: Checked


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fingerprints", description=__doc__)
    parser.add_argument("--largest", type=int, default=len(SIZES), help="how many of the sizes")
    options = parser.parse_args()
    rows = []
    for layers, mesh in SIZES[: options.largest]:
        rows.append(measured(layers, mesh))
        print(_line(rows[-1]), flush=True)
    PAGE.write_text(replaced(PAGE.read_text(), "ranks", table(rows)))
    return 0


def measured(layers: int, mesh: Mesh) -> Row:
    """A candidate that is right, and one with a wrong shard on one rank."""
    wrong = Wrong(module=f"layers.{layers // 2}.feed_forward.w2", rank=mesh.ranks // 3)
    with tempfile.TemporaryDirectory(prefix="fingerprints-") as name:
        folder = Path(name)
        write_reference(folder / "reference", layers, mesh.dp, noise_seed=None)
        write_reference(folder / "perturbed", layers, mesh.dp, noise_seed=1)
        records = write_candidate(folder / "candidate", layers, mesh)
        size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
        clean = checked(folder, "candidate")
        write_spoilt(folder / "wrong", folder / "candidate", layers, mesh, wrong)
        found = checked(folder, "wrong")
    if clean.code != 0:
        raise SystemExit(f"a run that is right was not found to be: exit code {clean.code}")
    if (found.code, found.named) != (1, wrong.module):
        raise SystemExit(f"{wrong} was planted, exit code {found.code} names {found.named!r}")
    return Row(
        layers=layers,
        ranks=mesh.ranks,
        records=records,
        megabytes=size / 1e6,
        clean=clean,
        wrong=found,
    )


def table(rows: list[Row]) -> str:
    lines = [
        f"Measured on {processor()}, of which a check uses one.\n",
        "| layers | ranks | records | MB | check, s | of CPU | peak, MB | one wrong, s | named |",
        "|---|---|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        clean, wrong = row.clean, row.wrong
        lines.append(
            f"| {row.layers} | {row.ranks} | {row.records:,} | {row.megabytes:,.0f} "
            f"| {clean.seconds:.1f} | {clean.cpu_seconds:.1f} | {clean.peak_mb:,.0f} "
            f"| {wrong.seconds:.1f} | `{wrong.named}` |"
        )
    return "\n".join(lines)


def _line(row: Row) -> str:
    return (
        f"{row.layers} layers, {row.ranks} ranks: {row.records:,} records, {row.megabytes:,.0f} "
        f"MB; {row.clean.seconds:.1f} s, {row.clean.peak_mb:,.0f} MB; with a wrong shard "
        f"{row.wrong.seconds:.1f} s, names {row.wrong.named}"
    )


if __name__ == "__main__":
    sys.exit(main())
