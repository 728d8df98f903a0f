"""How long does a shard take to generate, measured against `normal_()` of the same tensor?

    python -m benchmarks.generate

One thread, CPU time, 64 MiB of float32 (and as many bfloat16) a shard, best of N. Where there is a
CUDA device, the whole is also made there, by its clock.
"""

from __future__ import annotations

import functools
import json
import time
from collections.abc import Callable

import torch

from ttrace.core.layout import Layout
from ttrace.generate.counter import fill

ROUNDS = 9  # measured: the best of 7 to 15 repeats within 10% on a shared machine
SHARDS = {
    "rows": Layout.full((8192, 4096)).shard(0, 1, 2),
    "columns": Layout.full((4096, 8192)).shard(1, 1, 2),
    "narrow_columns": Layout.full((1 << 20, 128)).shard(1, 1, 8),
    "interleaved": Layout.full((12288, 2736)).interleaved(0, (4096, 4096, 4096), 1, 2),
    "flat": Layout.full((1 << 24,)),
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def run(*, rounds: int = ROUNDS) -> dict[str, object]:
    """Ratios to normal_() (1 would be as fast) and nanoseconds for an element."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        ratios, nanoseconds = _measure(torch.device("cpu"), rounds)
    finally:
        torch.set_num_threads(threads)
    result: dict[str, object] = {"ratio": ratios, "nanoseconds": nanoseconds}
    if torch.cuda.is_available():
        ratios, nanoseconds = _measure(torch.device("cuda"), rounds)
        result |= {"cuda_ratio": ratios, "cuda_nanoseconds": nanoseconds}
    return result


def _measure(device: torch.device, rounds: int) -> tuple[dict[str, float], dict[str, float]]:
    ratios, nanoseconds = {}, {}
    for shard, layout in SHARDS.items():
        for dtype in DTYPES:
            tensor = torch.empty(layout.local_shape, dtype=DTYPES[dtype], device=device)
            generate = functools.partial(
                fill, tensor, layout, name="weight", seed=0, mean=0.0, std=0.02
            )
            plain, generated = _best([tensor.normal_, generate], device, rounds)
            ratios[f"{shard}_{dtype}"] = round(generated / plain, 3)
            nanoseconds[f"{shard}_{dtype}"] = round(generated / tensor.numel() * 1e9, 3)
    return ratios, nanoseconds


def _best(works: list[Callable[[], object]], device: torch.device, rounds: int) -> list[float]:
    best = [float("inf")] * len(works)
    for _ in range(rounds):
        for i, work in enumerate(works):
            best[i] = min(best[i], _seconds(work, device))
    return best


def _seconds(work: Callable[[], object], device: torch.device) -> float:
    if device.type == "cpu":
        start = time.process_time()
        work()
        return time.process_time() - start
    torch.cuda.synchronize()
    start = time.perf_counter()
    work()
    torch.cuda.synchronize()
    return time.perf_counter() - start


if __name__ == "__main__":
    print(json.dumps(run(), indent=2))
