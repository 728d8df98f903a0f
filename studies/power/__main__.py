"""Clean runs over a grid, then planted errors; docs/reference/power.md has the tables and plots.

    $ python -m studies.power --seeds 15 --jobs 2

For every method the threshold is first widened, where it must be, until no clean run raises an
alarm; the sizes that 95% of the trials need can then be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import statistics as stdlib_statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from benchmarks.jobs import CONSOLE, in_parallel
from studies.power.clean import CleanRun, clean_runs, grid, widenings
from studies.power.methods import METHODS
from studies.power.runs import LAYOUTS, Model, prepare
from studies.power.sweep import SCALES, SWEPT, Swept, sweep

_TARGET = 0.95
SAMPLES = (8, 512)  # of 32 tokens: 256 and 16,384 rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m studies.power", description=__doc__)
    parser.add_argument("--seeds", type=int, default=15, help="0: take the clean runs of --out")
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--jobs", type=int, default=1, help="models at a time, 4 ranks each")
    parser.add_argument("--samples", type=int, nargs="*", default=SAMPLES, help="to plant in")
    parser.add_argument("--out", type=Path, default=Path(__file__).with_name("power.json"))
    options = parser.parse_args()
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    tasks = [(model, options.layouts.split(",")) for model in grid(seeds, options.device)]
    known = json.loads(options.out.read_text()) if options.out.exists() else {}
    runs = [CleanRun(**run) for run in known.get("runs", ())] if options.seeds == 0 else []
    for (model, _), found in in_parallel("clean runs", tasks, clean_runs, prepare, options.jobs):
        runs += found
        alarms = sum(run.alarms for run in found)
        CONSOLE.print(f"{model.name}: {alarms} alarms in {len(found)} checks", highlight=False)
        write(options.out, runs, [])
    swept: list[Swept] = []
    todo = [
        (
            Model(seed=99, dtype=dtype, layers=3, dim=128, samples=samples),
            layout,
            widenings(runs, dtype),
        )
        for samples in options.samples
        for dtype in ("float32", "bfloat16")
        for layout in SWEPT
    ]
    for _, result in in_parallel("planted errors", todo, sweep, prepare, options.jobs):
        swept += result
    write(options.out, runs, swept, known.get("detectable_at_95_percent", {}))


def write(
    path: Path,
    runs: Sequence[CleanRun],
    swept: Sequence[Swept],
    known: Mapping[str, Any] | None = None,
) -> None:
    """What docs/reference/power.md and its plots are made from; `known` sizes of other rows."""
    alarms = {
        name: sum(run.worst[name] > 1 for run in runs if not run.isolated) for name in METHODS
    }
    data = {
        "clean_runs": len(runs),
        "clean_runs_with_alarms": sum(run.alarms > 0 for run in runs),
        "plain_runs_with_alarms_by_method": alarms,
        "median_of_largest_ratio": stdlib_statistics.median(run.worst["ours"] for run in runs),
        "detectable_at_95_percent": dict(known or {})
        | {
            str(32 * samples): _table([one for one in swept if one.samples == samples])
            for samples in dict.fromkeys(one.samples for one in swept)
        },
        "roc": _roc(runs, [one for one in swept if one.samples == SAMPLES[0]]),
        "runs": [asdict(run) for run in runs],
    }
    path.write_text(text_of(data))


def text_of(data: Mapping[str, Any]) -> str:
    """JSON with a line for each run and each row of a table."""
    lines = [f" {json.dumps(key)}: {_lines(value)}" for key, value in data.items()]
    return "{\n" + ",\n".join(lines) + "\n}\n"


def _lines(value: Any) -> str:
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {json.dumps(each)}" for each in value) + "\n ]"
    return json.dumps(value)


def _table(swept: Sequence[Swept]) -> dict[str, dict[str, dict[str, float]]]:
    """The size found at 95%, by dtype, kind of error and method, over the layouts together."""
    trials: dict[str, dict[str, dict[str, list[float]]]] = {}
    for one in swept:
        kinds = trials.setdefault(one.dtype, {})
        for kind, methods in one.sizes.items():
            for name, sizes in methods.items():
                if label := _label(name, isolated=one.isolated):
                    kinds.setdefault(kind, {}).setdefault(label, []).extend(sizes)
    return {
        dtype: {
            kind: {name: at_95_percent(sizes) for name, sizes in methods.items()}
            for kind, methods in kinds.items()
        }
        for dtype, kinds in trials.items()
    }


def _label(method: str, *, isolated: bool) -> str | None:
    """Isolated runs are ours alone."""
    if isolated:
        return "ours, isolated" if method == "ours" else None
    return method


def at_95_percent(sizes: Sequence[float]) -> float:
    ordered = sorted(sizes)
    return ordered[math.ceil(_TARGET * len(ordered)) - 1]


def _roc(runs: Sequence[CleanRun], swept: Sequence[Swept]) -> dict[str, dict[str, Any]]:
    """Clean runs with an alarm and planted errors found, while every threshold is scaled."""
    curves: dict[str, dict[str, Any]] = {}
    for dtype in dict.fromkeys(one.dtype for one in swept):
        curves[dtype] = {}
        for isolated in (False, True):
            clean = [run for run in runs if (run.dtype, run.isolated) == (dtype, isolated)]
            ours = [one for one in swept if (one.dtype, one.isolated) == (dtype, isolated)]
            planted = sum(one.planted for one in ours)
            for name in METHODS:
                if (label := _label(name, isolated=isolated)) is None:
                    continue
                curves[dtype][label] = {
                    "scales": SCALES,
                    "clean runs with an alarm": [
                        sum(run.worst[name] > scale for run in clean) / len(clean)
                        for scale in SCALES
                    ],
                    "planted errors found": [
                        sum(one.found[name][index] for one in ours) / planted
                        for index in range(len(SCALES))
                    ],
                }
    return curves


if __name__ == "__main__":
    main()
