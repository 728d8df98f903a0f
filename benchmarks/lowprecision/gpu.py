"""Recipes whose products of codes a GPU makes itself: correct runs, and what recording costs.

    $ python -m benchmarks.lowprecision.gpu [--recipes tensorwise,rowwise] [--page PAGE]

Two gloo ranks share the device. It needs torch, numpy, safetensors and xxhash; of torchao nothing.
With `--page`, both tables go into that page of the documentation, between their marks. After
`--seconds` no further correct run is begun: the table says how many there were.
"""

from __future__ import annotations

import argparse
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from benchmarks.lowprecision import steps
from benchmarks.lowprecision.grid import Clean, checked
from benchmarks.pages import replaced
from zoo.lowprecision.case import Case, LayoutName
from zoo.lowprecision.grid import SEEDS
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
    parser.add_argument("--seconds", type=float, default=float("inf"))
    parser.add_argument("--emulated", action="store_true", help="products in fp32, as on a CPU")
    parser.add_argument("--page", type=Path)
    asked = parser.parse_args(arguments)
    warnings.simplefilter("ignore")
    recipes = asked.recipes.split(",")
    costs = [steps.measured(name, asked.device, is_real=not asked.emulated) for name in recipes]
    print(steps.table(costs), flush=True)
    torch.set_num_threads(1)
    chosen = [
        Case(recipe=name, layout=layout, seed=seed, device=asked.device, is_real=not asked.emulated)
        for seed in SEEDS[: asked.seeds]
        for name in recipes
        for layout in LAYOUTS
    ]
    found = list(_in_time(chosen, asked.seconds))
    tables = {"float8": f"{_head(asked.device)}\n\n{table(found)}"}
    tables["float8-steps"] = f"{_head(asked.device)}\n\n{steps.table(costs)}"
    for name, text in tables.items():
        print(f"<!-- {name} -->\n\n{text}\n\n<!-- end -->\n")
        if asked.page is not None:
            page = asked.page.read_text(encoding="utf-8")
            asked.page.write_text(replaced(page, name, text), encoding="utf-8")
    return 0 if all(each.is_silent for each in found) else 1


def _in_time(chosen: Sequence[Case], seconds: float) -> Iterator[Clean]:
    start, pool = time.monotonic(), worker_pool(2)
    try:
        for each in checked(chosen, pool):
            print(f"{each.key}: {each.largest:.2f} {each.alarms} alarms", flush=True)
            yield each
            if time.monotonic() - start > seconds:
                return
    finally:
        pool.close()


def _head(device: str) -> str:
    name = torch.cuda.get_device_name() if device == "cuda" else device
    return f"Measured on one {name}, torch {torch.__version__}."


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
