"""Clean runs: whole experiments of the tool on correct code, in which nothing may be found.

Enters: a model. Leaves: for every layout, plain and isolated, the largest error in units of what
each method allows.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from studies.power.methods import METHODS, comparable
from studies.power.runs import Model, SharedReferences, experiment
from ttrace.core.results import CheckResult
from zoo.workers import worker_pool

SIZES = ((3, 64), (2, 128), (6, 64), (2, 64))  # (layers, width), one after the other
_MOST_RANKS = 4


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


def grid(seeds: range, device: str) -> list[Model]:
    return [
        Model(seed=seed, dtype=dtype, layers=layers, dim=dim, device=device)
        for seed in seeds
        for layers, dim in [SIZES[seed % len(SIZES)]]
        for dtype in ("float32", "bfloat16")
    ]


def clean_runs(task: tuple[Model, Sequence[str]]) -> list[CleanRun]:
    model, layouts = task
    pool = worker_pool(_MOST_RANKS)  # a fresh one: process groups leave threads behind
    folder = Path(tempfile.mkdtemp(prefix="power-"))
    try:
        return [clean for clean, _, _ in run_model(model, layouts, SharedReferences(pool), folder)]
    finally:
        pool.close()
        shutil.rmtree(folder)


def run_model(
    model: Model, layouts: Sequence[str], execute: SharedReferences, folder: Path
) -> Iterator[tuple[CleanRun, CheckResult, Path]]:
    """Every layout of one model, plain and then isolated, with the folder of its traces."""
    for layout in layouts:
        place = folder / model.name / layout
        place.mkdir(parents=True)
        asked = experiment(model, layout, place, execute)
        for isolated in (False, True):
            result = asked.isolate(candidate=place / "candidate") if isolated else asked.compare()
            traces = place / "isolation" if isolated else place
            yield _summarised(result, model, layout, isolated=isolated), result, traces


def _summarised(result: CheckResult, model: Model, layout: str, *, isolated: bool) -> CleanRun:
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


def widenings(runs: Sequence[CleanRun], dtype: str) -> dict[str, float]:
    """What each method's threshold must be multiplied by for no alarm in the plain clean runs."""
    plain = [run for run in runs if run.dtype == dtype and not run.isolated]
    return {
        name: max([1.0, *(run.worst[name] for run in plain)])
        for name in METHODS
        if not name.startswith("ours")
    }
