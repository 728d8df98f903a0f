"""Is it noise or a bug? False alarms on clean runs, and the smallest error that is found.

    $ PYTHONPATH=tests python -m benchmarks.power --seeds 15 --out benchmarks/power.json

Clean runs are whole experiments of the tool (power_runs.py), plain and isolated. Errors are planted
into the recorded values of the candidate, in memory, so that a sweep needs no further run. For
every method the threshold is first widened, where it must be, until no clean run raises an alarm;
the sizes that 95% of the trials need can then be compared.
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import statistics as stdlib_statistics
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import torch

from benchmarks.power_inject import INJECTIONS, Injection
from benchmarks.power_methods import METHODS, comparable
from benchmarks.power_runs import LAYOUTS, Model, PooledRunner, experiment
from ttrace.align import align
from ttrace.compare import Measured, Pair, judge
from ttrace.core.blocks import BlockReader
from ttrace.core.reader import Trace
from ttrace.core.results import CheckResult, TensorResult
from ttrace.core.spans import SpanReader
from ttrace.core.statistics import Accumulator

SIZES = ((3, 64), (2, 128), (6, 64), (2, 64))  # (layers, width), one after the other
SMALLEST, LARGEST, STEPS = 1e-8, 1e3, 44  # of the sweep: bisection of 4 sizes a decade
_TARGET = 0.95


@dataclass(frozen=True, slots=True, kw_only=True)
class CleanRun:
    """The largest error of one clean run, in units of what each method allows."""

    model: str
    layout: str
    dtype: str
    isolated: bool
    tensors: int
    alarms: int
    worst: dict[str, float]
    by_statistic: dict[str, float]


def summarise(result: CheckResult, model: Model, layout: str, *, isolated: bool) -> CleanRun:
    judged = [r for r in result.tensors if comparable(r)]
    by_statistic: dict[str, float] = {}
    for judgement in (j for r in result.tensors for j in r.judgements):
        name = judgement.reading.statistic.value
        by_statistic[name] = max(by_statistic.get(name, 0.0), judgement.ratio)
    return CleanRun(
        model=model.name,
        layout=layout,
        dtype=model.dtype,
        isolated=isolated,
        tensors=len(result.tensors),
        alarms=len(result.failures) + len(result.undecided),
        worst={
            name: max((method(r, model.layers) for r in judged), default=0.0)
            for name, method in METHODS.items()
        },
        by_statistic=by_statistic,
    )


def run_model(
    model: Model, layouts: Sequence[str], runner: PooledRunner, folder: Path
) -> Iterator[tuple[CleanRun, CheckResult, Path]]:
    """Every layout of one model, plain and then isolated, with the folder of its traces."""
    for layout in layouts:
        place = folder / model.name / layout
        place.mkdir(parents=True)
        asked = experiment(model, layout, place)
        for isolated in (False, True):
            result = (asked.isolate if isolated else asked.compare)(runner, lambda *_: None)
            traces = place / "isolation" if isolated else place
            yield summarise(result, model, layout, isolated=isolated), result, traces


def sensitivities(
    result: CheckResult, traces: Path, model: Model, widened: dict[str, float], trials: int
) -> dict[str, dict[str, list[float]]]:
    """For every kind of error and method, the smallest size that each trial needs."""
    found: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in METHODS} for kind in INJECTIONS
    }
    for judged, reference, candidate, pair in _recorded(result, traces):
        for kind, inject in INJECTIONS.items():
            for trial in range(trials):
                spoil = _Spoilt(judged, reference, candidate, pair, inject, trial)
                for name in METHODS:
                    size = _smallest(spoil, name, model.layers, widened.get(name, 1.0))
                    found[kind][name].append(size)
    return found


class _Spoilt:
    """One tensor with one error of any size; what is judged is kept."""

    def __init__(
        self,
        judged: TensorResult,
        reference: torch.Tensor,
        candidate: torch.Tensor,
        pair: Pair,
        inject: Injection,
        trial: int,
    ) -> None:
        self._judged, self._pair, self._inject, self._trial = judged, pair, inject, trial
        self._reference, self._candidate = reference, candidate
        self._known: dict[float, TensorResult] = {}

    def at(self, size: float) -> TensorResult:
        if size not in self._known:
            generator = torch.Generator().manual_seed(self._trial)
            spoilt = self._inject(self._candidate.float(), size, generator)
            whole = Accumulator(shape=self._reference.shape)
            whole.update(self._reference, spoilt.to(self._candidate.dtype))
            measured = Measured(statistics=whole.result())
            self._known[size] = judge(
                self._judged.id, self._pair, measured, self._judged.tolerance, 0
            )
        return self._known[size]


def _smallest(spoilt: _Spoilt, name: str, layers: int, widened: float) -> float:
    """By bisection: larger errors of one kind are not harder to find."""

    def size(step: int) -> float:
        return SMALLEST * (LARGEST / SMALLEST) ** (step / STEPS)

    low, high = -1, STEPS + 1
    while high - low > 1:
        middle = (low + high) // 2
        result = spoilt.at(size(middle))
        alarm = result.statistics is not None and result.statistics.nonfinite_candidate > 0
        if alarm or METHODS[name](result, layers) > widened:
            high = middle
        else:
            low = middle
    return size(high) if high <= STEPS else math.inf


def _recorded(
    result: CheckResult, traces: Path
) -> Iterator[tuple[TensorResult, torch.Tensor, torch.Tensor, Pair]]:
    """The last layer's matrices and activations that are not bitwise equal, as recorded."""
    wanted = {
        r.id: r
        for r in result.tensors
        if comparable(r)
        and r.statistics is not None
        and r.id.kind.value in ("output", "grad_input", "main_grad")
        and r.id.module.startswith("layers.1.")
        and len(r.shape) >= 2
        and r.statistics.max_error > 0
    }
    ours, theirs = Trace.open(traces / "reference"), Trace.open(traces / "candidate")
    with SpanReader(ours.path) as ours_spans, SpanReader(theirs.path) as theirs_spans:
        aligned = align(ours, theirs, reference_spans=ours_spans, candidate_spans=theirs_spans)
        for found in aligned.tensors:
            if found.id not in wanted or found.reference is None or found.candidate is None:
                continue
            shape = found.reference.shape
            start = (0,) * len(shape)
            reference = BlockReader(ours_spans).read(found.reference.pieces, shape, start, shape)
            candidate = BlockReader(theirs_spans).read(found.candidate.pieces, shape, start, shape)
            pair = (found.reference, found.candidate)
            yield wanted[found.id], reference.clone(), candidate.clone(), pair


def at_95_percent(sizes: Sequence[float]) -> float:
    ordered = sorted(sizes)
    return ordered[min(len(ordered) - 1, math.ceil(_TARGET * len(ordered)) - 1)]


def widenings(runs: Sequence[CleanRun], dtype: str) -> dict[str, float]:
    """What each method's threshold must be multiplied by for no alarm in the plain clean runs."""
    plain = [run for run in runs if run.dtype == dtype and not run.isolated]
    return {
        name: max([1.0, *(run.worst[name] for run in plain)])
        for name in METHODS
        if not name.startswith("ours")
    }


def power_table(
    models: Sequence[Model], runs: Sequence[CleanRun], runner: PooledRunner, folder: Path
) -> dict[str, Any]:
    """The size found at 95%, by dtype, kind of error and method."""
    table: dict[str, Any] = {}
    for model in models:
        sizes: dict[str, dict[str, float]] = {kind: {} for kind in INJECTIONS}
        widened = widenings(runs, model.dtype)
        for clean, result, traces in run_model(model, ["split2"], runner, folder):
            found = sensitivities(result, traces, model, widened, trials=5)
            for kind, methods in found.items():
                if clean.isolated:
                    sizes[kind]["ours, isolated"] = at_95_percent(methods["ours"])
                else:
                    sizes[kind] |= {name: at_95_percent(v) for name, v in methods.items()}
        table[model.dtype] = sizes
    return table


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=15)
    parser.add_argument("--first-seed", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--layouts", default=",".join(LAYOUTS))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/power.json"))
    options = parser.parse_args()
    from worker_pool import WorkerPool  # tests/, which make bench-power puts on the path

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
    runs: list[CleanRun] = []
    models = [
        Model(seed=seed, dtype=dtype, layers=layers, dim=dim, device=options.device)
        for seed in range(options.first_seed, options.first_seed + options.seeds)
        for layers, dim in [SIZES[seed % len(SIZES)]]
        for dtype in ("float32", "bfloat16")
    ]
    with tempfile.TemporaryDirectory() as name:
        for model in models:
            pool = WorkerPool(4)  # a fresh one: process groups leave threads behind
            folder = Path(name)
            for clean, _, _ in run_model(
                model, options.layouts.split(","), PooledRunner(pool), folder
            ):
                runs.append(clean)
                print(f"{clean.model} {clean.layout} {clean.alarms} alarms", flush=True)
            pool.close()
            shutil.rmtree(folder / model.name)
            write(options.out, runs, {})
        pool = WorkerPool(1)
        sweep = [replace(m, seed=99, layers=3, dim=128) for m in models[:2]]
        table = power_table(sweep, runs, PooledRunner(pool), Path(name))
        pool.close()
    write(options.out, runs, table)


def write(path: Path, runs: Sequence[CleanRun], table: dict[str, Any]) -> None:
    """What docs/reference/power.md and its plots are made from."""
    alarms = {
        name: sum(run.worst[name] > 1 for run in runs if not run.isolated) for name in METHODS
    }
    data = {
        "clean_runs": len(runs),
        "clean_runs_with_alarms": sum(run.alarms > 0 for run in runs),
        "plain_runs_with_alarms_by_method": alarms,
        "median_of_largest_ratio": stdlib_statistics.median(run.worst["ours"] for run in runs)
        if runs
        else None,
        "detectable_at_95_percent": table,
        "runs": [asdict(run) for run in runs],
    }
    path.write_text(json.dumps(data, indent=1) + "\n")


if __name__ == "__main__":
    main()
