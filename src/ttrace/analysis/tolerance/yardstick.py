"""Yardsticks: what tolerances need to know of the reference's logical tensors."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from ttrace.analysis.tolerance.factors import CARRIED_BY_FEW, TINY
from ttrace.analysis.tolerance.jump import NO_JUMP, Jump, jumps
from ttrace.core.form import made_at
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.readings import Statistic, readings
from ttrace.core.statistics import Statistics
from ttrace.trace.spans import SpanReader

Key = tuple[Statistic, tuple[int, ...]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Drawn:
    """One reading over all perturbed runs: its geometric mean, its largest, and of how many."""

    mean: float
    largest: float
    draws: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The perturbed references against the reference, and a few facts.

    `repeated`: the reference once more, which differs where it is not deterministic.
    """

    dtype: str
    volume: int
    sequence: int
    noise: tuple[Statistics, ...]
    repeated: tuple[Statistics, ...] = ()
    shape: tuple[int, ...] = ()
    jump: Jump = NO_JUMP  # of an updated parameter

    @property
    def is_usable(self) -> bool:
        """Whether a perturbed run has it, with the infinities of a mask where they were."""
        return bool(self.noise) and not any(run.nonfinite_reference for run in self.noise)

    @property
    def noise_norm(self) -> float:
        return self._drawn([statistics.error_norm for statistics in self.noise]).mean

    @property
    def reference_norm(self) -> float:
        return self.noise[0].reference_norm

    @property
    def cells(self) -> tuple[int, ...]:
        """Of fingerprints, whose finer readings are those of cells of this size."""
        return self.noise[0].cells

    def parts(self, dims: Sequence[int]) -> int:
        """How many parts of it fix these dims."""
        return self.noise[0].parts(self.shape, dims) if self.shape else 1

    @property
    def part_peak(self) -> float:
        """A bound of the largest norm of one element, or of one cell of a fingerprint."""
        return min(self.reference_norm, self.peak * math.sqrt(math.prod(self.cells)))

    @property
    def peak(self) -> float:
        return self.noise[0].peak

    @property
    def is_tiny(self) -> bool:
        """Whether one draw of its norm may be far from another: few elements carry it."""
        few = (CARRIED_BY_FEW * s.error_norm**2 < s.max_error**2 for s in self.noise)
        return self.volume < TINY or any(few)

    def drawn(self) -> dict[Key, Drawn]:
        """Every reading of the perturbed runs; at least what the repeated reference shows."""
        found: dict[Key, list[float]] = {}
        for run in self.noise:
            for reading in readings(run):
                found.setdefault(reading.key, []).append(reading.value)
        again: dict[Key, float] = {}
        for run in self.repeated:
            for reading in readings(run):
                again[reading.key] = max(again.get(reading.key, 0.0), reading.value)
        return {
            key: self._drawn(values, at_least=again.get(key, 0.0)) for key, values in found.items()
        }

    @staticmethod
    def _drawn(values: Sequence[float], at_least: float = 0.0) -> Drawn:
        seen = [value for value in values if value > 0]
        if not seen:
            return Drawn(mean=at_least, largest=at_least, draws=1)
        mean = math.exp(sum(map(math.log, seen)) / len(seen))
        return Drawn(mean=max(mean, at_least), largest=max(*seen, at_least), draws=len(seen))


def yardsticks(
    tensors: Mapping[TensorId, LogicalTensor],
    noise: Sequence[Mapping[TensorId, Statistics]],
    spans: SpanReader,
    *,
    repeated: Sequence[Mapping[TensorId, Statistics]] = (),
) -> dict[TensorId, Yardstick]:
    """One for every tensor of the reference; `noise` has the statistics of each perturbed run."""
    plain = {
        id_: Yardstick(
            dtype=reference.dtype,
            volume=reference.volume,
            sequence=made_at(reference.pieces),
            shape=reference.shape,
            noise=_found(id_, noise),
            repeated=_found(id_, repeated),
        )
        for id_, reference in tensors.items()
    }
    return {
        id_: replace(yardstick, jump=_jump(id_, tensors, plain, spans))
        if id_.kind is Kind.PARAM_AFTER
        else yardstick
        for id_, yardstick in plain.items()
    }


def _found(id_: TensorId, runs: Iterable[Mapping[TensorId, Statistics]]) -> tuple[Statistics, ...]:
    return tuple(run[id_] for run in runs if id_ in run)


def _jump(
    id_: TensorId,
    tensors: Mapping[TensorId, LogicalTensor],
    known: Mapping[TensorId, Yardstick],
    spans: SpanReader,
) -> Jump:
    before, name = replace(id_, kind=Kind.PARAM), id_.slot.removesuffix(MASTER)
    # Who updates by hand may leave no main gradient to see.
    kinds = (replace(id_, kind=kind, slot=name) for kind in (Kind.MAIN_GRAD, Kind.GRAD))
    gradient = next((each for each in kinds if each in known and known[each].noise), None)
    if gradient is None or before not in tensors:
        return NO_JUMP
    if len({tensors[each].shape for each in (before, gradient, id_)}) > 1:
        return NO_JUMP  # a shape changed in the step, or the trace is not what was recorded
    return jumps(
        spans,
        before=tensors[before],
        gradient=tensors[gradient],
        after=tensors[id_],
        gradient_noise=max(statistics.error_norm for statistics in known[gradient].noise),
    )
