"""Floors from other tensors: what a loss and a norm summarise, and what tensors of a kind share."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import torch

from ttrace.analysis.tolerance.finer import Family, family
from ttrace.analysis.tolerance.yardstick import Yardstick
from ttrace.core.ids import Kind, TensorId
from ttrace.trace.dtypes import eps_of

# Torch adds the squares of a tensor in fp32 one after the other on a CPU: a norm of 2^20 elements
# is 84 eps too small, of 2^22 692 eps (measured). Chosen: several times that is rounding still.
_DRIFT_PER_ELEMENT = 2.0**-10 * eps_of(torch.float32)


def norm_floors(yardsticks: Mapping[TensorId, Yardstick]) -> dict[int, float]:
    """How far the noise of the main gradients moves their norm N, to second order.

    A random change d of the n elements of a gradient g is nearly orthogonal to it: it moves N by
    about |g| |d| / sqrt(n) / N, and always makes it larger by |d|^2 / 2N. What adds the squares up
    rounds by itself: as far as the reference's norm is from that of its own gradients.
    """
    recorded = {
        id_.step: norm.reference_norm
        for id_, norm in yardsticks.items()
        if id_.kind is Kind.GRAD_NORM and norm.noise
    }
    largest: dict[int, int] = {}
    squares: dict[int, list[float]] = {}
    for id_, gradient in yardsticks.items():
        if id_.kind is Kind.MAIN_GRAD and gradient.noise:
            change = gradient.noise_norm
            size = gradient.reference_norm
            along = (size * change) ** 2 / max(1, gradient.volume)
            largest[id_.step] = max(largest.get(id_.step, 1), gradient.volume)
            sums = squares.setdefault(id_.step, [0.0, 0.0, 0.0])
            for index, square in enumerate((size**2, along, change**2)):
                sums[index] += square
    return {
        step: (math.sqrt(along) + across / 2) / math.sqrt(size)
        + _drift(recorded.get(step), math.sqrt(size), largest[step])
        for step, (size, along, across) in squares.items()
        if size
    }


def _drift(recorded: float | None, exact: float, largest: int) -> float:
    """How far a norm is from the exact one; nothing where rounding cannot be all that it is.

    That is then the norm of something else, and says nothing of how norms round.
    """
    away = 0.0 if recorded is None else abs(recorded - exact)
    return away if away <= largest * _DRIFT_PER_ELEMENT * exact else 0.0


def loss_floors(yardsticks: Mapping[TensorId, Yardstick]) -> dict[int, float]:
    """How far the noise of the model's last output moves the loss, to first order.

    One draw of a scalar can be near zero. A random change d of the n elements behind it with
    gradient g moves it by about |g| |d| / sqrt(n).
    """
    floors: dict[int, float] = {}
    latest: dict[int, int] = {}
    for id_, output in yardsticks.items():
        gradient = yardsticks.get(
            TensorId(
                step=id_.step,
                module=id_.module,
                kind=Kind.GRAD_OUTPUT,
                slot=id_.slot,
                call=id_.call,
            )
        )
        if (
            id_.kind is not Kind.OUTPUT
            or gradient is None
            or not gradient.noise
            or not output.noise
        ):
            continue
        if output.volume > 1 and output.sequence > latest.get(id_.step, -1):
            latest[id_.step] = output.sequence
            change = output.noise_norm
            slope = gradient.reference_norm
            floors[id_.step] = change * slope / math.sqrt(output.volume)
    return floors


@dataclass(frozen=True, slots=True, kw_only=True)
class Peers:
    """What the tensors of one family have in common."""

    norms: Mapping[Family, float]  # the median of those that are not zero
    # Relative: the median of those that many elements carry. Where all are tiny, as maxima of which
    # scales are made, each is a draw, and half of them are zero: their root mean square.
    noises: Mapping[Family, float]

    @classmethod
    def of(cls, yardsticks: Mapping[TensorId, Yardstick]) -> Peers:
        norms: dict[Family, list[float]] = {}
        noises: dict[Family, list[float]] = {}
        of_tiny: dict[Family, list[float]] = {}
        for id_, yardstick in yardsticks.items():
            if yardstick.noise and yardstick.reference_norm > 0:
                norms.setdefault(family(id_), []).append(yardstick.reference_norm)
                relative = yardstick.noise_norm / yardstick.reference_norm
                kept = of_tiny if yardstick.is_tiny else noises
                kept.setdefault(family(id_), []).append(relative)
        together = {key: _root_mean_square(values) for key, values in of_tiny.items()}
        return cls(
            norms={key: _median(values) for key, values in norms.items()},
            noises=together | {key: _median(values) for key, values in noises.items()},
        )

    def norm(self, id_: TensorId) -> float:
        return self.norms.get(family(id_), 0.0)

    def relative_noise(self, id_: TensorId) -> float:
        return self.noises.get(family(id_), 0.0)


def _root_mean_square(values: Sequence[float]) -> float:
    return math.sqrt(sum(value * value for value in values) / len(values))


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
