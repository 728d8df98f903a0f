"""How much faster several processes are than one, and what one core reads beside `cat`.

All are timed in turns, and the best of each counts; a result that differs from that of one process
ends the benchmark. Seconds are those of the whole command, ratios those of what it does beyond
starting, as importing torch takes as long as reading 8 GB.
"""

from __future__ import annotations

import sys
import time

from benchmarks.scale.cases import Case, case, run
from ttrace.analysis.engine.capacity import cores

ROUNDS = 2  # chosen


def engines() -> str:
    lines = [
        "| candidate | processes | GB read | seconds | faster | GB/s a core | of `cat` |",
        "|---|---|---|---|---|---|---|",
    ]
    for name, is_right in (("right", True), ("wrong", False)):
        with case(is_right=is_right) as found:
            lines += _rows(name, found, code=0 if is_right else 1)
    return "\n".join(lines)


def _rows(name: str, found: Case, *, code: int) -> list[str]:
    counts = sorted({1, 2, cores()})
    start = [sys.executable, "-c", "import ttrace.cli, ttrace.analysis.check"]
    cat = ["sh", "-c", 'cat "$@" > /dev/null', "cat", *map(str, found.files)]
    best = dict.fromkeys(["start", "cat", *counts], float("inf"))
    for _ in range(ROUNDS):
        best["start"] = min(best["start"], _seconds(start))
        best["cat"] = min(best["cat"], _seconds(cat))
        for count in counts:
            command = found.command(str(count), "--workers", str(count))
            best[count] = min(best[count], _seconds(command, code=code))
    for count in counts[1:]:
        if found.result(str(count)) != found.result("1"):
            raise SystemExit(f"{count} processes found something else than one")
    alone = best[1] - best["start"]
    reading = found.stored_bytes / best["cat"]
    rows = []
    for count in counts:
        checking = best[count] - best["start"]
        rate = found.read_bytes / checking / count
        rows.append(
            f"| {name} | {count} | {found.read_bytes / 1e9:.0f} | {best[count]:.1f} "
            f"| {alone / checking:.2f}x | {rate / 1e9:.1f} | {rate / reading:.2f} |"
        )
    return rows


def _seconds(command: list[str], *, code: int = 0) -> float:
    start = time.perf_counter()
    run(command, code=code)
    return time.perf_counter() - start
