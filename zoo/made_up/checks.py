"""`ttrace check` of made-up traces, as people run it, in one process of one thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

_MEASURED = """
import resource, subprocess, sys
code = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL).returncode
used = resource.getrusage(resource.RUSAGE_CHILDREN)
print(code, used.ru_utime + used.ru_stime, used.ru_maxrss / 1024)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """One check: what came of it, and what it took."""

    code: int
    seconds: float
    cpu_seconds: float
    peak_mb: float
    named: str  # the module of the first culprit
    ranks: tuple[int, ...]  # of the first failure


def checked(folder: Path, candidate: str) -> Checked:
    """The candidate of this name against the reference in the same folder."""
    result = folder / f"{candidate}.json"
    command = (
        *(sys.executable, "-m", "ttrace", "check", str(folder / "reference")),
        *(str(folder / candidate), "--perturbed", str(folder / "perturbed")),
        *("--workers", "1", "--json", str(result)),
    )
    start = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-c", _MEASURED, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds = time.perf_counter() - start
    code, used, peak = done.stdout.split()
    if int(code) > 1:
        raise SystemExit(f"the check of {candidate} ended with exit code {code}: {done.stderr}")
    data = json.loads(result.read_text())
    failed = [tensor for tensor in data["tensors"] if tensor["verdict"] == "mismatch"]
    culprits = data["culprits"]
    return Checked(
        code=int(code),
        seconds=seconds,
        cpu_seconds=float(used),
        peak_mb=float(peak),
        named=", ".join(culprits[0]["blame"]["modules"]) if culprits else "",
        ranks=tuple(failed[0].get("ranks", ())) if failed else (),
    )
