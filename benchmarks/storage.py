"""What writing a trace costs, beside a plain write() and beside torch.save.

    python benchmarks/storage.py

The same tensors, 0.8 GB of 4 KB to 16 MB, mostly bf16, go through TraceWriter (checksums and
journal included), through os.write into one file, and every eighth of them through torch.save into
files of their own. All passes are interleaved in one process; the best of five counts, per GB.
Ratios are of CPU time, since wall time on a shared disk is mostly noise.
"""

from __future__ import annotations

import json
import math
import os
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.payload import tensor_bytes
from ttrace.trace.writer import TraceWriter

COUNT = 400
SMALLEST, LARGEST = 4 << 10, 16 << 20
TORCH_SAVE_SHARE = 8
REPEATS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    cpu_s: float
    wall_s: float


def make_tensors() -> list[torch.Tensor]:
    """Sizes log-uniform; of ten tensors eight are bf16, one fp32, one fp8."""
    generator = torch.Generator().manual_seed(0)
    positions = torch.rand(COUNT, generator=generator).tolist()
    tensors = []
    for index, position in enumerate(positions):
        size_bytes = int(SMALLEST * math.exp(position * math.log(LARGEST / SMALLEST))) // 4 * 4
        bits = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8, generator=generator)
        dtype = {0: torch.float32, 1: torch.float8_e4m3fn}.get(index % 10, torch.bfloat16)
        tensors.append(bits.view(dtype))
    return tensors


def write_trace(folder: Path, tensors: list[torch.Tensor]) -> None:
    writer = TraceWriter(folder, RankInfo(rank=0, world_size=1))
    for index, tensor in enumerate(tensors):
        record = Record(
            id=TensorId(step=0, module=f"layers.{index}.mlp", kind=Kind.OUTPUT, slot="0"),
            rank=0,
            sequence=index,
            dtype=dtype_name(tensor.dtype),
            shape=tuple(tensor.shape),
        )
        writer.write(record, tensor)
    writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))


def write_raw(folder: Path, tensors: list[torch.Tensor]) -> None:
    folder.mkdir()
    fd = os.open(folder / "raw.bin", os.O_WRONLY | os.O_CREAT)
    for tensor in tensors:
        data = tensor_bytes(tensor)
        if os.write(fd, data) != data.nbytes:
            raise OSError("the disk is full")
    os.close(fd)


def write_torch_save(folder: Path, tensors: list[torch.Tensor]) -> None:
    folder.mkdir()
    for index, tensor in enumerate(tensors):
        torch.save(tensor, folder / f"{index}.pt")


def measure(write: Callable[[Path, list[torch.Tensor]], None], tensors: list[torch.Tensor]) -> Cost:
    root = Path(tempfile.mkdtemp(prefix="ttrace-storage-"))
    try:
        cpu, wall = time.process_time(), time.perf_counter()
        write(root / "trace", tensors)
        return Cost(cpu_s=time.process_time() - cpu, wall_s=time.perf_counter() - wall)
    finally:
        shutil.rmtree(root)


def best(costs: list[Cost]) -> Cost:
    return Cost(cpu_s=min(cost.cpu_s for cost in costs), wall_s=min(cost.wall_s for cost in costs))


def run() -> dict[str, object]:
    """CPU and wall seconds per GB of every way to write, and their ratios."""
    tensors = make_tensors()
    subset = tensors[::TORCH_SAVE_SHARE]
    ways: dict[str, tuple[Callable[[Path, list[torch.Tensor]], None], list[torch.Tensor]]] = {
        "raw": (write_raw, tensors),
        "writer": (write_trace, tensors),
        "torch_save": (write_torch_save, subset),
    }
    costs: dict[str, list[Cost]] = {name: [] for name in ways}
    for _ in range(REPEATS):
        for name, (write, some) in ways.items():
            costs[name].append(measure(write, some))
    gigabytes = {name: sum(t.nbytes for t in some) / 1e9 for name, (_, some) in ways.items()}
    cpu = {name: best(costs[name]).cpu_s / gigabytes[name] for name in ways}
    wall = {name: best(costs[name]).wall_s / gigabytes[name] for name in ways}
    return {
        "tensors": len(tensors),
        "gigabytes": round(gigabytes["writer"], 3),
        "cpu_s_per_gb": {name: round(seconds, 3) for name, seconds in cpu.items()},
        "wall_s_per_gb": {name: round(seconds, 3) for name, seconds in wall.items()},
        "writer_vs_raw": round(cpu["raw"] / cpu["writer"], 3),
        "writer_vs_torch_save": round(cpu["torch_save"] / cpu["writer"], 2),
    }


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
