"""The grid on one GPU, with its own products of codes (torch._scaled_mm); prints its table last.

$ python -m benchmarks.lowprecision.gpu [--recipes tensorwise,rowwise] [--emulated]

Two gloo ranks share the device. It needs torch, numpy, safetensors and xxhash; of torchao nothing.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Sequence

import torch

from benchmarks.lowprecision.grid import SEEDS, Clean, checked
from zoo.lowprecision.case import Case, LayoutName
from zoo.workers import worker_pool

# Scales of tensors and of rows are what `_scaled_mm` knows on every device with float8.
REAL = ("tensorwise", "rowwise", "rowwise-hp", "delayed")
# gloo sends tensors of a GPU in all-reduces and gathers of lists, which FSDP2 does not use.
LAYOUTS: tuple[LayoutName, ...] = ("ddp2", "tp2", "tp2-sp")


def main(arguments: Sequence[str] | None = None) -> int:
    """0 when nothing was alarmed at."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lowprecision.gpu")
    parser.add_argument("--recipes", default=",".join(REAL))
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--emulated", action="store_true", help="products in fp32, as on a CPU")
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    chosen = [
        Case(
            recipe=recipe,
            layout=layout,
            seed=seed,
            device=asked.device,
            is_real=not asked.emulated,
        )
        for recipe in asked.recipes.split(",")
        for layout in LAYOUTS
        for seed in SEEDS[: asked.seeds]
    ]
    found, start = [], time.monotonic()
    pool = worker_pool(2)
    try:
        for each in checked(chosen, pool):
            found.append(each)
            print(f"{each.key}: {each.largest:.2f} {each.alarms} alarms", flush=True)
    finally:
        pool.close()
    print(f"\ntorch {torch.__version__}, {time.monotonic() - start:.0f} s\n")
    print(table(found))
    return 0 if all(each.is_silent for each in found) else 1


def table(found: Sequence[Clean]) -> str:
    lines = ["| recipe | layout | seeds | alarms | largest ratio | seconds |", "|---" * 6 + "|"]
    keys = dict.fromkeys((each.case.recipe, each.case.layout) for each in found)
    for key in keys:
        own = [each for each in found if (each.case.recipe, each.case.layout) == key]
        largest, alarms = max(each.largest for each in own), sum(each.alarms for each in own)
        seconds = sum(each.seconds for each in own)
        cells = (*key, len(own), alarms, f"{largest:.2f}", f"{seconds:.1f}")
        lines.append(f"| {' | '.join(map(str, cells))} |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
