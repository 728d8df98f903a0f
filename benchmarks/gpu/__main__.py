"""Costs of recording on one GPU; the table comes last.

$ python -m benchmarks.gpu [--quick]      (quick: the smaller model only)
"""

from __future__ import annotations

import argparse
import gc
import sys
import tempfile
from pathlib import Path

import torch

from benchmarks.gpu import full
from benchmarks.gpu.kernel import bandwidths
from benchmarks.gpu.model import NAMED
from benchmarks.gpu.recording import Cost, cost


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=__doc__)
    parser.add_argument("--quick", action="store_true")
    names = ["small"] if parser.parse_args().quick else ["small", "large"]
    if not torch.cuda.is_available():
        print("there is no GPU that torch can use")
        return 2
    lines = [f"{torch.cuda.get_device_name()}, torch {torch.__version__}"]
    lines += [
        f"kernel {b.name:<22} sum {b.plain_sum / 1e12:5.2f} TB/s  fingerprint "
        f"{b.fingerprint / 1e12:5.2f} TB/s  ratio {b.fingerprint / b.plain_sum:4.2f}"
        for b in bandwidths()
    ]
    for name in names:
        lines += _model(name)
    print("\n".join(lines))
    return 0


def _model(name: str) -> list[str]:
    plain = _measured("off", name, None)
    fingerprints = _measured("fingerprints", name, "fingerprint")
    lines = [_line(name, found, plain) for found in (plain, fingerprints)]
    for row in full.rows(NAMED[name], Path(tempfile.gettempdir())):
        ratio = "" if row.ratio is None else f"{row.ratio:.2f} {row.target}"
        lines.append(f"{name:<6} full: {row.what:<40} {row.measured:<60} {ratio}")
        print(lines[-1], flush=True)
    return lines


def _measured(what: str, name: str, payload: str | None) -> Cost:
    found = cost(what, NAMED[name], payload)
    gc.collect()
    torch.cuda.empty_cache()
    print(name, found, flush=True)
    return found


def _line(name: str, found: Cost, plain: Cost) -> str:
    return (
        f"{name:<6} {found.name:<13} {found.seconds / plain.seconds:6.2f} x  "
        f"{1e3 * found.seconds:8.1f} ms a step  {found.recorded_bytes / 1e9:8.3f} GB  "
        f"peak {found.peak_bytes / plain.peak_bytes:.3f} x"
    )


if __name__ == "__main__":
    sys.exit(main())
