"""Yardsticks: what tolerances need to know of the reference's logical tensors.

Updates jump: Adam's early steps are close to the sign of the gradient, so an element whose gradient
is rounding noise around zero moves by the full learning rate in either direction. And an update
near half a unit in the last place of its parameter is rounded to none or to all of it. A single
such element can make up all of a tensor's error, so one perturbed run cannot tell how large it will
be in the next. Its bound can be read off the reference, and so can what the noise of the gradient
does to the whole update.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ttrace.analysis.tolerance.factors import CARRIED_BY_FEW, TINY
from ttrace.core.form import made_at
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.statistics import Statistic, Statistics, readings
from ttrace.measure.cells import norm_of
from ttrace.measure.fingerprint import SMALLEST_MAGNITUDES
from ttrace.trace.blocks import BlockReader, blocks
from ttrace.trace.dtypes import eps_of
from ttrace.trace.sketches import CellsDoNotFit, SketchReader, common_sizes, is_sketched
from ttrace.trace.spans import SpanReader

# Chosen: noise beyond 6 times its root mean square has a probability of 1e-9 when normal.
_REACH = 6.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Jump:
    """By how much one element may move at most, and the norm of what all of them do."""

    element: float
    norm: float


NO_JUMP = Jump(element=0.0, norm=0.0)


def jumps(
    spans: SpanReader,
    *,
    before: LogicalTensor,
    gradient: LogicalTensor,
    after: LogicalTensor,
    gradient_noise: float,
) -> Jump:
    """What a gradient within its noise (a norm) does to `after`.

    An update changes at most by the share by which its gradient does, and by no more than its sign.
    """
    usual = gradient_noise / math.sqrt(max(1, gradient.volume))
    eps = eps_of(after.dtype)
    if is_sketched(before, gradient, after):
        return _sketched_jumps(SketchReader(spans), before, gradient, after, usual)
    reader = BlockReader(spans)
    element = squares = 0.0
    for start, stop in blocks(after.shape):
        old, slope, new = (
            reader.read(tensor.pieces, tensor.shape, start, stop).to(torch.float32, copy=True)
            for tensor in (before, gradient, after)
        )
        share = (usual / slope.abs_()).nan_to_num_(nan=0.0)
        update = old.sub_(new).abs_()
        reached = update * (_REACH * share).clamp_(max=2.0)
        element = max(element, float(reached.max()), eps * float(new.abs_().max()))
        squares += float(update.mul_(share.clamp_(max=2.0)).square_().sum(dtype=torch.float64))
    return Jump(element=element, norm=math.sqrt(squares))


def _sketched_jumps(
    reader: SketchReader,
    before: LogicalTensor,
    gradient: LogicalTensor,
    after: LogicalTensor,
    usual: float,
) -> Jump:
    """The same of fingerprints, as if all elements that have a gradient were updated alike.

    That is what Adam does in its early steps. How many gradients are how small was counted.
    """
    sizes = common_sizes(before, gradient, after)
    try:
        old, slope, new = (
            reader.read(tensor.pieces, tensor.shape, sizes) for tensor in (before, gradient, after)
        )
    except CellsDoNotFit:
        return NO_JUMP
    update = norm_of(new.sums - old.sums, dims=len(sizes))
    rounding = eps_of(after.dtype) * (new.peak or 0.0)
    if slope.exponents is None or not math.isfinite(update):
        return Jump(element=max(update, rounding), norm=update)
    counts = slope.exponents[1:].astype(np.float64)  # the first are zeros, and next to nothing
    if not counts.sum():
        return Jump(element=rounding, norm=0.0)
    each = update / math.sqrt(counts.sum())
    smallest = SMALLEST_MAGNITUDES[1:]
    reached = each * np.minimum(_REACH * usual / smallest, 2.0)
    # Magnitudes between m and 16 m, all alike: the mean of their inverse squares is 1 / (4 m)^2.
    moved = each * np.minimum(usual / (4 * smallest), 2.0)
    return Jump(
        element=max(float(reached[counts > 0].max()), rounding),
        norm=math.sqrt(float((counts * moved**2).sum())),
    )


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
