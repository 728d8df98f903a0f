"""Errors of every kind and size in recorded values of a clean candidate: which are found?

Enters: a model and a layout. Leaves, for every method: the smallest size that each trial needs,
and how many of the errors of all sizes are found when its threshold is scaled. Errors are planted
in memory, so that a sweep needs no further run.
"""

from __future__ import annotations

import math
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch

from studies.power.clean import run_model
from studies.power.inject import INJECTIONS, Injection
from studies.power.methods import METHODS, comparable
from studies.power.runs import Model, SharedReferences
from ttrace.analysis.align import Aligner
from ttrace.analysis.compare import Measured
from ttrace.analysis.judge.exhibits import exhibit_of
from ttrace.analysis.judge.reduce import weigh
from ttrace.analysis.judge.rules.values import Infinities, InTolerance
from ttrace.analysis.sources import opened
from ttrace.core.logical import Alignment, Pair
from ttrace.core.results import CheckResult, TensorResult
from ttrace.measure.accumulator import Accumulator
from ttrace.trace.blocks import BlockReader
from zoo.workers import worker_pool

SWEPT = ("split2", "tp2")  # simulated and real tensor parallelism
TRIALS = 3  # of every kind of error in every tensor: other rows, elements, heads
SMALLEST, LARGEST, STEPS = 1e-8, 1e3, 132  # 12 sizes a decade
SCALES = tuple(10 ** (step / 10 - 3) for step in range(71))  # of thresholds, for the ROC
_ROC_STEPS = range(0, STEPS + 1, 6)


@dataclass(frozen=True, slots=True, kw_only=True)
class Swept:
    """Of one dtype, number of rows, layout and mode."""

    dtype: str
    samples: int
    layout: str
    isolated: bool
    sizes: dict[str, dict[str, list[float]]]  # kind of error, method: of each trial
    found: dict[str, list[int]] = field(default_factory=dict)  # method: at each of SCALES
    planted: int = 0


def sweep(task: tuple[Model, str, Mapping[str, float]]) -> list[Swept]:
    """Plain and isolated."""
    model, layout, widened = task
    pool = worker_pool(2)
    folder = Path(tempfile.mkdtemp(prefix="power-"))
    try:
        return [
            _swept(result, model, layout, widened, isolated=clean.isolated)
            for clean, result, _ in run_model(model, [layout], SharedReferences(pool), folder)
        ]
    finally:
        pool.close()
        shutil.rmtree(folder)


def _swept(
    result: CheckResult,
    model: Model,
    layout: str,
    widened: Mapping[str, float],
    *,
    isolated: bool,
) -> Swept:
    sizes: dict[str, dict[str, list[float]]] = {
        kind: {name: [] for name in METHODS} for kind in INJECTIONS
    }
    found = {name: [0] * len(SCALES) for name in METHODS}
    planted = 0
    for judged, reference, candidate, pair in recorded(result):
        for kind, inject in INJECTIONS.items():
            for trial in range(TRIALS):
                spoilt = Spoilt(judged, reference, candidate, pair, inject, trial, model.layers)
                planted += len(_ROC_STEPS)
                for name in METHODS:
                    sizes[kind][name].append(smallest(spoilt, name, widened.get(name, 1.0)))
                    for step in _ROC_STEPS:
                        ratio = spoilt.ratio(step, name)
                        for index, scale in enumerate(SCALES):
                            found[name][index] += ratio > scale
    return Swept(
        dtype=model.dtype,
        samples=model.samples,
        layout=layout,
        isolated=isolated,
        sizes=sizes,
        found=found,
        planted=planted,
    )


class Spoilt:
    """One tensor with one error of any size; what is judged is kept."""

    def __init__(
        self,
        judged: TensorResult,
        reference: torch.Tensor,
        candidate: torch.Tensor,
        pair: Pair,
        inject: Injection,
        trial: int,
        layers: int,
    ) -> None:
        self._judged, self._pair, self._inject, self._trial = judged, pair, inject, trial
        self._reference, self._candidate, self._layers = reference, candidate, layers
        self._known: dict[int, TensorResult] = {}

    def ratio(self, step: int, method: str) -> float:
        """Error to threshold; infinite where the error overflows, which no method misses."""
        result = self._at(step)
        if result.statistics is not None and result.statistics.nonfinite_candidate > 0:
            return math.inf
        return METHODS[method](result, self._layers)

    def measured(self, reference: torch.Tensor, spoilt: torch.Tensor) -> Measured:
        """Value by value."""
        whole = Accumulator(shape=reference.shape)
        whole.update(reference, spoilt)
        return Measured(statistics=whole.result())

    def _at(self, step: int) -> TensorResult:
        if step not in self._known:
            generator = torch.Generator().manual_seed(self._trial)
            spoilt = self._inject(self._candidate.float(), size_of(step), generator)
            measured = self.measured(self._reference, spoilt.to(self._candidate.dtype))
            id_, tolerance = self._judged.id, self._judged.tolerance
            reference, candidate = self._pair
            alignment = Alignment(id=id_, reference=reference, candidate=candidate)
            exhibits = {id_: exhibit_of(alignment, measured, tolerance)}
            case: Any = SimpleNamespace(exhibits=exhibits)
            said = [
                each for rule in (InTolerance(), Infinities()) for each in rule.accuse(case, ())
            ]
            self._known[step] = weigh(exhibits, said)[id_]
        return self._known[step]


def size_of(step: int) -> float:
    return SMALLEST * (LARGEST / SMALLEST) ** (step / STEPS)


def smallest(spoilt: Spoilt, method: str, widened: float) -> float:
    """By bisection: larger errors of one kind are not harder to find."""
    low, high = -1, STEPS + 1
    while high - low > 1:
        middle = (low + high) // 2
        if spoilt.ratio(middle, method) > widened:
            high = middle
        else:
            low = middle
    return size_of(high) if high <= STEPS else math.inf


def recorded(
    result: CheckResult,
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
    folders = (("reference", result.reference), ("candidate", result.candidate))
    with opened(*folders) as sources:
        for found in Aligner(sources[0]).align(sources[1]).tensors:
            if found.id not in wanted or found.reference is None or found.candidate is None:
                continue
            pair = (found.reference, found.candidate)
            shape, start = pair[0].shape, (0,) * len(pair[0].shape)
            reference, candidate = (
                BlockReader(source.spans).read(side.pieces, shape, start, shape).clone()
                for source, side in zip(sources, pair, strict=True)
            )
            yield wanted[found.id], reference, candidate, pair
