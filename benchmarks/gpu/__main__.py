"""Costs of recording on one GPU; the table comes last.

$ python -m benchmarks.gpu [--quick] [--page PAGE]      (quick: the smaller model only)

With `--page`, the table goes into that page of the documentation, between its marks.
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import NamedTuple

import torch

from benchmarks.gpu import full
from benchmarks.gpu.kernel import bandwidths
from benchmarks.gpu.model import NAMED, make_workload
from benchmarks.gpu.recording import Cost, cost
from benchmarks.pages import replaced


class Line(NamedTuple):
    """One line of the table."""

    model: str
    what: str
    measured: str
    ratio: str = ""
    target: str = ""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--page", type=Path)
    options = parser.parse_args()
    names = ["small"] if options.quick else ["small", "large"]
    if not torch.cuda.is_available():
        print("there is no GPU that torch can use")
        return 2
    lines = list(_kernels())
    for name in names:
        for line in _model(name):
            print(*line, sep=" | ", flush=True)
            lines.append(line)
    head = f"Measured on one {torch.cuda.get_device_name()}, torch {torch.__version__}."
    text = "\n".join(markdown(head, lines))
    if options.page is not None:
        page = options.page.read_text(encoding="utf-8")
        options.page.write_text(replaced(page, "gpu", text), encoding="utf-8")
    print(text)
    return 0


def markdown(head: str, lines: list[Line]) -> Iterator[str]:
    yield f"{head}\n"
    yield "| model | what | measured | ratio | target |"
    yield "|---|---|---|---|---|"
    for line in lines:
        yield f"| {' | '.join(line)} |"


def _kernels() -> Iterator[Line]:
    for found in bandwidths():
        told = f"{found.fingerprint / 1e12:.2f} TB/s, a plain sum {found.plain_sum / 1e12:.2f}"
        ratio = f"{found.fingerprint / found.plain_sum:.2f}"
        yield Line("", f"kernel, {found.name}", told, ratio, ">= 0.8")


def _model(name: str) -> Iterator[Line]:
    plain = _measured("off", name, None)
    yield Line(name, "plain step", f"{1e3 * plain.seconds:.1f} ms")
    prints = _measured("fingerprints", name, "fingerprint")
    yield Line(
        name,
        "fingerprints of everything",
        f"{1e3 * prints.seconds:.1f} ms, {prints.recorded_bytes / 1e6:.0f} MB a step",
        f"{prints.seconds / plain.seconds:.2f}",
        "<= 1.05",
    )
    synced = prints.synced_seconds / plain.synced_seconds
    told = f"{1e3 * prints.synced_seconds:.1f} ms of {1e3 * plain.synced_seconds:.1f}"
    yield Line(name, "the same, in a loop that waits after each step", told, f"{synced:.2f}")
    peak = prints.peak_bytes / plain.peak_bytes
    told = f"{prints.peak_bytes / 1e9:.2f} GB"
    yield Line(name, "the same, peak memory", told, f"{peak:.3f}", "<= 1.02")
    for fault in prints.faults:
        yield Line(name, "the same, said", fault)
    is_written = name != "large"  # whose steps are larger than most disks are quick
    for row in full.rows(NAMED[name], Path(tempfile.gettempdir()), is_written=is_written):
        ratio = "" if row.ratio is None else f"{row.ratio:.2f}"
        yield Line(name, f"full: {row.what}", row.measured, ratio, row.target)


def _measured(what: str, name: str, payload: str | None) -> Cost:
    gc.collect()  # what was measured before must not count
    torch.cuda.empty_cache()
    return cost(what, partial(make_workload, NAMED[name]), payload)


if __name__ == "__main__":
    sys.exit(main())
