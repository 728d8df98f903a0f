"""A worker that is killed while it reads: the result must be the same, and how much later it comes.

The worker is one of two, and is killed by SIGKILL once it has read as much as a tensor.
"""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from benchmarks.scale.cases import TENSOR_BYTES, case, run

_WAIT_SECONDS = 0.01
_AT_MOST_SECONDS = 120.0


def killed() -> str:
    with case(is_right=False) as found:
        run(found.command("alone", "--workers", "1"), code=1)
        start = time.perf_counter()
        run(found.command("two", "--workers", "2"), code=1)
        undisturbed = time.perf_counter() - start
        start = time.perf_counter()
        check = subprocess.Popen(
            found.command("killed", "--workers", "2"), stdout=subprocess.DEVNULL
        )
        worker = _reading(check)
        os.kill(worker, signal.SIGKILL)
        code = check.wait()
        seconds = time.perf_counter() - start
        if code != 1:
            raise SystemExit(f"a check of which a worker was killed ended with {code}, expected 1")
        results = [found.result(name) for name in ("alone", "two", "killed")]
    if not results[0] == results[1] == results[2]:
        raise SystemExit("a check of which a worker was killed found something else")
    return "\n".join(
        [
            "| check of two workers | seconds | result |",
            "|---|---|---|",
            f"| undisturbed | {undisturbed:.1f} | that of one process |",
            f"| one killed in the middle | {seconds:.1f} | the same |",
        ]
    )


def _reading(check: subprocess.Popen[bytes]) -> int:
    """A worker that has read more than a tensor."""
    task = Path(f"/proc/{check.pid}/task/{check.pid}/children")
    end = time.perf_counter() + _AT_MOST_SECONDS
    while time.perf_counter() < end and check.poll() is None:
        for child in map(int, task.read_text().split()):
            told = Path(f"/proc/{child}/io").read_text()
            read = next(line for line in told.splitlines() if line.startswith("rchar"))
            if int(read.split()[1]) > 4 * TENSOR_BYTES:
                return child
        time.sleep(_WAIT_SECONDS)
    raise SystemExit("no worker was seen reading: the check was over too soon, or hangs")
