"""Yardsticks: what tolerances need to know of the reference's logical tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ttrace.analysis.tolerance.jump import largest_jump
from ttrace.core.ids import MASTER, Kind, TensorId
from ttrace.core.logical import LogicalTensor
from ttrace.core.statistics import Statistics
from ttrace.trace.blocks import BlockReader


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """The perturbed references against the reference, and a few facts."""

    dtype: str
    volume: int
    sequence: int
    noise: tuple[Statistics, ...]
    jump: float = 0.0  # of one element of an updated parameter (jump.py)

    @property
    def noise_norm(self) -> float:
        return max(statistics.error_norm for statistics in self.noise)

    @property
    def reference_norm(self) -> float:
        return self.noise[0].reference_norm


def yardsticks(
    tensors: Mapping[TensorId, LogicalTensor],
    noise: Sequence[Mapping[TensorId, Statistics]],
    reader: BlockReader,
) -> dict[TensorId, Yardstick]:
    """One for every tensor of the reference; `noise` has the statistics of each perturbed run."""
    noises = {id_: [run[id_] for run in noise if id_ in run] for id_ in tensors}
    return {
        id_: Yardstick(
            dtype=reference.dtype,
            volume=reference.volume,
            sequence=reference.sequence,
            noise=tuple(noises[id_]),
            jump=_jump(id_, tensors, noises, reader),
        )
        for id_, reference in tensors.items()
    }


def _jump(
    id_: TensorId,
    tensors: Mapping[TensorId, LogicalTensor],
    noises: Mapping[TensorId, Sequence[Statistics]],
    reader: BlockReader,
) -> float:
    before = replace(id_, kind=Kind.PARAM)
    gradient = replace(id_, kind=Kind.MAIN_GRAD, slot=id_.slot.removesuffix(MASTER))
    if id_.kind is not Kind.PARAM_AFTER or not noises.get(gradient) or before not in tensors:
        return 0.0
    return largest_jump(
        reader,
        before=tensors[before],
        gradient=tensors[gradient],
        after=tensors[id_],
        gradient_noise=max(statistics.error_norm for statistics in noises[gradient]),
    )
