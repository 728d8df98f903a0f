"""Tolerances that follow from other tensors.

Floors: what a loss and a norm summarise, and what tensors of a kind share. And what is a function
of gradients, clipped ones and the optimizer's state, inherits their tolerance:

    clipped  = g * c             c as far off as the norm that clips may be
    exp_avg  = b * before + a * g
    exp_avg_sq = b * before + a * g^2

A gradient that passed may have moved what follows from it by as much as the function makes of
that, whatever one perturbed run happened to show: squares are carried by a few elements, of which
another run moves others. No constant of the optimizer is needed: a <= peak(state) / peak(g), and
the slope of a square is at most 2 a peak(g) = 2 peak(state) / peak(g).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

import torch

from ttrace.analysis.tolerance.finer import Family, family, part_norm
from ttrace.analysis.tolerance.yardstick import Key, Yardstick
from ttrace.core.ids import Kind, TensorId
from ttrace.core.statistics import Limit, Statistic, Tolerance
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


# States that are sums of squares of gradients; others are taken as sums of gradients.
_SQUARES = frozenset({"exp_avg_sq", "max_exp_avg_sq", "square_avg", "sum", "acc_delta"})


def derive(
    allowed: Mapping[TensorId, Tolerance],
    known: Mapping[TensorId, Yardstick],
    *,
    isolated: bool,
) -> dict[TensorId, Tolerance]:
    """All tolerances, those of clipped gradients and states no smaller than gradients make them.

    In an isolated run gradients that are clipped, and those that make an update, are the
    reference's own: nothing is inherited from them.
    """
    found = dict(allowed)
    for id_ in sorted(allowed, key=lambda id_: (id_.step, id_.kind is Kind.OPTIMIZER)):
        if id_.kind is Kind.CLIPPED_GRAD:
            own = found[id_] if isolated else _clipped(id_, found, known)
            found[id_] = _with_norm(id_, own, found, known)
        elif id_.kind is Kind.OPTIMIZER and not isolated:
            found[id_] = _state(id_, found, known)
    return found


def _clipped(
    id_: TensorId, allowed: Mapping[TensorId, Tolerance], known: Mapping[TensorId, Yardstick]
) -> Tolerance:
    own, size = allowed[id_], known[id_].reference_norm
    gradient = replace(id_, kind=Kind.MAIN_GRAD)
    if gradient not in allowed or not known[gradient].reference_norm:
        return own
    scale = size / known[gradient].reference_norm
    return _larger(own, _scaled(allowed[gradient], scale), "tolerance of the gradient")


def _with_norm(
    id_: TensorId,
    own: Tolerance,
    allowed: Mapping[TensorId, Tolerance],
    known: Mapping[TensorId, Yardstick],
) -> Tolerance:
    """What the norm may be off by relatively, all that is clipped by it may be off too."""
    norm = TensorId(step=id_.step, module="", kind=Kind.GRAD_NORM)
    if norm not in allowed or not known[norm].reference_norm:
        return own
    share = allowed[norm].error_norm / known[norm].reference_norm
    return _with_share(own, share, known[id_], "tolerance of the gradient norm")


def _state(
    id_: TensorId, allowed: Mapping[TensorId, Tolerance], known: Mapping[TensorId, Yardstick]
) -> Tolerance:
    own, yardstick = allowed[id_], known[id_]
    name, _, state = id_.slot.rpartition(".")
    for kind in (Kind.CLIPPED_GRAD, Kind.MAIN_GRAD):
        gradient = replace(id_, kind=kind, slot=name)
        if gradient in allowed and known[gradient].peak:
            break
    else:
        return own
    if known[gradient].shape != yardstick.shape:
        return own
    slope = yardstick.peak / known[gradient].peak * (2 if state in _SQUARES else 1)
    inherited = _scaled(allowed[gradient], slope)
    earlier = replace(id_, step=max(0, id_.step - 1))
    if id_.step and earlier in allowed:
        inherited = _sum(inherited, allowed[earlier])
    return _larger(own, inherited, "tolerance of the gradient")


def _scaled(tolerance: Tolerance, scale: float) -> Tolerance:
    limits = tuple(replace(limit, allowed=scale * limit.allowed) for limit in tolerance.limits)
    noise = None if tolerance.noise is None else scale * tolerance.noise
    return replace(tolerance, error_norm=scale * tolerance.error_norm, noise=noise, limits=limits)


def _allowed_by(tolerance: Tolerance) -> dict[Key, float]:
    return {(limit.statistic, limit.dims): limit.allowed for limit in tolerance.limits}


def _sum(one: Tolerance, other: Tolerance) -> Tolerance:
    more = _allowed_by(other)
    limits = tuple(
        replace(limit, allowed=limit.allowed + more[limit.statistic, limit.dims])
        for limit in one.limits
        if (limit.statistic, limit.dims) in more
    )
    return replace(one, error_norm=one.error_norm + other.error_norm, limits=limits)


def _larger(own: Tolerance, other: Tolerance, source: str) -> Tolerance:
    """Limit by limit; where a gradient is judged by its norm alone, so is what follows from it."""
    theirs = _allowed_by(other)
    limits = tuple(
        replace(limit, allowed=max(limit.allowed, theirs[limit.statistic, limit.dims]))
        for limit in own.limits
        if (limit.statistic, limit.dims) in theirs
    )
    if own.error_norm >= other.error_norm:
        return replace(own, limits=limits)
    return replace(own, error_norm=other.error_norm, source=source, limits=limits)


def _with_share(own: Tolerance, share: float, yardstick: Yardstick, source: str) -> Tolerance:
    """With a common factor that may be off by a share: it moves all elements alike."""

    def moved(limit: Limit) -> float:
        if limit.statistic is Statistic.ELEMENT:
            return yardstick.part_peak
        return part_norm(yardstick, limit.dims)

    limits = tuple(
        replace(limit, allowed=limit.allowed + share * moved(limit)) for limit in own.limits
    )
    common = share * yardstick.reference_norm
    if common <= own.error_norm:
        return replace(own, limits=limits)
    return replace(own, error_norm=common, source=source, limits=limits)
