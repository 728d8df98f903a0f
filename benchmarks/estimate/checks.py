"""Checks of several sizes: what they take, and the coefficients that explain it best.

Enters: made-up traces of fingerprints (benchmarks/fingerprints), and runs of the demo with all
values. Leaves: seconds of CPU and peak memory beside what the estimate says, and coefficients that
src/ttrace/analysis/estimate/checking.py can have.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from benchmarks.estimate.runs import recorded
from benchmarks.fingerprints.checked import Checked, checked
from benchmarks.fingerprints.traces import write_candidate, write_reference
from benchmarks.fingerprints.values import Mesh
from ttrace.analysis.estimate.checking import CheckWork
from ttrace.trace.reader import Trace

MADE_UP = (
    (4, Mesh(tp=2, dp=2)),
    (16, Mesh(tp=2, dp=2)),
    (16, Mesh(tp=4, dp=4)),
    (48, Mesh(tp=4, dp=4)),
    (32, Mesh(tp=4, dp=8)),
)
OF_VALUES = ("--layers 2", "--dim 384 --layers 4", "--dim 768 --layers 4")
_RUNS = ("reference", "candidate", "perturbed")


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckOutcome:
    """One check, and what there was to do."""

    name: str
    work: CheckWork
    taken: Checked


def made_up(folder: Path, layers: int, mesh: Mesh) -> CheckOutcome:
    write_reference(folder / "reference", layers, mesh.dp, noise_seed=None)
    write_reference(folder / "perturbed", layers, mesh.dp, noise_seed=1)
    write_candidate(folder / "candidate", layers, mesh)
    return _checked(folder, f"{layers} layers, {mesh.ranks} ranks, fingerprints")


def of_values(folder: Path, options: str) -> CheckOutcome:
    recorded(folder / "reference", options, "full")
    recorded(folder / "perturbed", options, "full", noise=1)
    recorded(folder / "candidate", f"{options} --dp 2 --data-parallel ddp", "full")
    return _checked(folder, f"{options.replace('--', '')}, 2 ranks, values")


def _checked(folder: Path, name: str) -> CheckOutcome:
    taken = checked(folder, "candidate")
    traces = [Trace.open(folder / run) for run in _RUNS]
    sizes = [sum(path.stat().st_size for path in (folder / run).rglob("seg-*")) for run in _RUNS]
    work = CheckWork(
        records=sum(len(rank.records) for trace in traces for rank in trace.ranks.values()),
        pairs=2 * len(traces[1].by_id()),
        stored_bytes=sizes[1] + 3 * sizes[0],  # the reference is read for each of the others
    )
    return CheckOutcome(name=name, work=work, taken=taken)


def fitted(rows: Sequence[Sequence[float]], measured: Sequence[float]) -> list[float]:
    """Coefficients, none below nothing, whose relative errors have the least squares."""
    matrix = np.array(rows) / np.array(measured)[:, None]
    kept = list(range(matrix.shape[1]))
    while True:
        found, *_ = np.linalg.lstsq(matrix[:, kept], np.ones(len(measured)), rcond=None)
        if (found >= 0).all():
            break
        kept.pop(int(np.argmin(found * matrix[:, kept].max(axis=0))))
    return [float(found[kept.index(at)]) if at in kept else 0.0 for at in range(matrix.shape[1])]


def coefficients(outcomes: Sequence[CheckOutcome]) -> tuple[list[float], list[float]]:
    """Of seconds: start, record, pair, byte; of memory: start, record, pair."""
    works = [found.work for found in outcomes]
    seconds = fitted(
        [[1, work.records, work.pairs, work.stored_bytes] for work in works],
        [found.taken.cpu_seconds for found in outcomes],
    )
    memory = fitted(
        [[1, work.records, work.pairs] for work in works],
        [found.taken.peak_mb * 2**20 for found in outcomes],
    )
    return seconds, memory
