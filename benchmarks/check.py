"""`ttrace check` of large tensors: peak memory over the interpreter, and speed against cat.

    $ python -m benchmarks.check --gigabytes 4
    {"clean": {"check_vs_cat": 0.52, "peak_mb_over_torch": 23.5, ...}, "failing": {...}}

`clean` is one tensor that passes, `failing` are 20 of 200 MB that do not, each of which is looked
at closely, and one that is just small enough to be guessed about. The candidate holds every tensor
in two column shards on two ranks; in the latter case the second one is wrong. The perturbed
reference is the reference with one element of each changed, so that nothing is decided without
looking. Ratios are of CPU time on one core, since wall time on a shared machine is mostly noise.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import torch

from ttrace.analysis.diagnose.suspect import LARGEST
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.writer import TraceWriter

ROUNDS = 3  # chosen: interleaved, the best of each counts
FAILING = 20
FAILING_BYTES = 200_000_000
_COLUMNS = 8192
_ITEM_BYTES = 2  # of bfloat16


def run(gigabytes: float = 4.0, failing_bytes: int = FAILING_BYTES) -> dict[str, object]:
    """Both cases, each with traces of its own."""
    rows = int(gigabytes * 2**30) // (_ITEM_BYTES * _COLUMNS)
    wrong_rows = failing_bytes // (_ITEM_BYTES * _COLUMNS)
    guessed = LARGEST // _COLUMNS
    return {
        "clean": _measure([rows], error=0.0),
        "failing": _measure([wrong_rows] * FAILING + [guessed], error=0.5),
    }


def _measure(sizes: Sequence[int], error: float) -> dict[str, object]:
    """Peak memory in MB over a bare `import torch`, and bytes a CPU second against cat."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size_bytes = write_traces(folder, sizes, error)
        files = [str(file) for file in sorted(folder.rglob("*.safetensors"))]
        commands = {
            "cat": ["sh", "-c", 'cat "$@" > /dev/null', "cat", *files],
            "check": [
                *(sys.executable, "-m", "ttrace", "check"),
                *(str(folder / "reference"), str(folder / "candidate")),
                *("--perturbed", str(folder / "perturbed"), "--json", str(folder / "result.json")),
            ],
            "torch": [sys.executable, "-c", "import torch"],
            "no work": [sys.executable, "-c", "import ttrace.cli, ttrace.analysis.check"],
        }
        seconds = dict.fromkeys(commands, float("inf"))
        peaks = dict.fromkeys(commands, 0)
        for _ in range(ROUNDS):
            for what, command in commands.items():
                used, peaks[what] = _timed(command)
                seconds[what] = min(seconds[what], used)
        result = json.loads((folder / "result.json").read_text())
    read_bytes = size_bytes * 4 // 3  # the reference is read twice, the two others once
    checking = seconds["check"] - seconds["no work"]
    return {
        "gigabytes": size_bytes / 3e9,
        "tensors": len(sizes),
        "outcome": result["outcome"],
        "examined": len(result["details"]),
        "peak_mb_over_torch": (peaks["check"] - peaks["torch"]) / 1024,
        "check_gb_per_s": read_bytes / 1e9 / checking,
        "cat_gb_per_s": size_bytes / 1e9 / seconds["cat"],
        "check_vs_cat": (read_bytes / checking) / (size_bytes / seconds["cat"]),
    }


def write_traces(folder: Path, sizes: Sequence[int], error: float) -> int:
    """Tensors of so many rows; the second shard of the candidate is too large by `error`."""
    runs = (("reference", 1, None), ("candidate", 2, None), ("perturbed", 1, 1))
    writers = {
        (name, rank): TraceWriter(
            folder / name, RankInfo(rank=rank, world_size=ranks, noise_seed=noise)
        )
        for name, ranks, noise in runs
        for rank in range(ranks)
    }
    generator = torch.Generator().manual_seed(0)
    size_bytes = 0
    for number, rows in enumerate(sizes):
        tensor = torch.empty(rows, _COLUMNS, dtype=torch.bfloat16)
        for part in tensor.split(1 << 12):
            part.copy_(torch.randn(part.shape, generator=generator))
        full = Layout.full(tensor.shape)
        _write(writers["reference", 0], 0, number, tensor, full)
        tensor[0, 0] += 1.0
        _write(writers["perturbed", 0], 0, number, tensor, full)
        tensor[0, 0] -= 1.0
        tensor[-1, -1] += 1e-2
        tensor[:, _COLUMNS // 2 :] *= 1 + error
        for rank, part in enumerate(tensor.chunk(2, 1)):
            _write(writers["candidate", rank], rank, number, part, full.shard(1, rank, 2))
        size_bytes += 3 * tensor.nbytes
    for writer in writers.values():
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    return size_bytes


def _write(writer: TraceWriter, rank: int, number: int, part: torch.Tensor, layout: Layout) -> None:
    record = Record(
        id=TensorId(step=0, module=f"layers.{number}", kind=Kind.MAIN_GRAD, slot="weight"),
        rank=rank,
        sequence=number + 1,
        dtype="bfloat16",
        shape=tuple(part.shape),
        layout=layout,
    )
    writer.write(record, part)


def _timed(command: list[str]) -> tuple[float, int]:
    """CPU seconds and peak resident KB of one command, measured by a process of its own."""
    script = (
        "import resource, subprocess, sys; subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL);"
        "used = resource.getrusage(resource.RUSAGE_CHILDREN);"
        "print(used.ru_utime + used.ru_stime, used.ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command],
        env=os.environ | {"OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        check=True,
    )
    seconds, peak = done.stdout.split()
    return float(seconds), int(peak)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=4.0)
    parser.add_argument("--failing-megabytes", type=float, default=FAILING_BYTES / 1e6)
    options = parser.parse_args()
    print(json.dumps(run(options.gigabytes, int(options.failing_megabytes * 1e6)), indent=1))
