"""`ttrace check` of one large tensor: peak memory over the interpreter, and speed against cat.

    $ python -m benchmarks.check --gigabytes 4

The candidate holds the tensor in two column shards on two ranks. The perturbed reference is the
reference with one element changed, so that nothing is decided without looking.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from pathlib import Path

import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.writer import TraceWriter

_COLUMNS = 8192


def run(gigabytes: float = 4.0) -> dict[str, object]:
    """Peak memory in MB over a bare `import torch`, and bytes a second against cat."""
    rows = int(gigabytes * 2**30) // (2 * _COLUMNS)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        size_bytes = _write_traces(folder, rows)
        files = [str(file) for file in sorted(folder.rglob("*.safetensors"))]
        cat = _timed(["sh", "-c", 'cat "$@" > /dev/null', "cat", *files])
        checked = _timed(
            [
                *(sys.executable, "-m", "ttrace", "check"),
                *(str(folder / "reference"), str(folder / "candidate")),
                *("--perturbed", str(folder / "perturbed"), "--json", str(folder / "result.json")),
            ]
        )
        torch_alone = _timed([sys.executable, "-c", "import torch"])
        no_work = _timed([sys.executable, "-c", "import ttrace.cli, ttrace.analysis.check"])
        outcome = json.loads((folder / "result.json").read_text())["outcome"]
    read_bytes = size_bytes * 4 // 3  # the reference is read twice, the two others once
    return {
        "tensor_gb": gigabytes,
        "outcome": outcome,
        "peak_mb_over_torch": (checked[1] - torch_alone[1]) / 1024,
        "check_gb_per_s": read_bytes / 1e9 / (checked[0] - no_work[0]),
        "cat_gb_per_s": size_bytes / 1e9 / cat[0],
        "check_vs_cat": (read_bytes / (checked[0] - no_work[0])) / (size_bytes / cat[0]),
    }


def _write_traces(folder: Path, rows: int) -> int:
    generator = torch.Generator().manual_seed(0)
    tensor = torch.empty(rows, _COLUMNS, dtype=torch.bfloat16)
    for part in tensor.split(1 << 12):
        part.copy_(torch.randn(part.shape, generator=generator))
    full = Layout.full(tensor.shape)
    _write(folder / "reference", [tensor], [full], None)
    halves = [tensor[:, : _COLUMNS // 2], tensor[:, _COLUMNS // 2 :]]
    tensor[-1, -1] += 1e-2
    _write(folder / "candidate", halves, [full.shard(1, 0, 2), full.shard(1, 1, 2)], None)
    tensor[0, 0] += 1.0
    _write(folder / "perturbed", [tensor], [full], 1)
    return 3 * tensor.numel() * tensor.element_size()


def _write(
    folder: Path, parts: list[torch.Tensor], layouts: list[Layout], noise: int | None
) -> None:
    for rank, (part, layout) in enumerate(zip(parts, layouts, strict=True)):
        info = RankInfo(rank=rank, world_size=len(parts), noise_seed=noise)
        writer = TraceWriter(folder, info)
        record = Record(
            id=TensorId(step=0, module="layer", kind=Kind.MAIN_GRAD, slot="weight"),
            rank=rank,
            sequence=1,
            dtype="bfloat16",
            shape=tuple(part.shape),
            layout=layout,
        )
        writer.write(record, part)
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))


def _timed(command: list[str]) -> tuple[float, int]:
    """Wall seconds and peak resident KB of one command, measured by a process of its own."""
    script = (
        "import resource, subprocess, sys, time; t = time.perf_counter(); "
        "subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL); "
        "print(time.perf_counter() - t, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, *command], capture_output=True, text=True, check=True
    )
    seconds, peak = done.stdout.split()
    return float(seconds), int(peak)


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--gigabytes", type=float, default=4.0)
    print(json.dumps(run(parser.parse_args().gigabytes), indent=1))
