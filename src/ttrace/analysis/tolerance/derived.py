"""Tolerances of what is a function of gradients: clipped ones, and the optimizer's state.

    clipped  = g * c             c as far off as the norm that clips may be
    exp_avg  = b * before + a * g
    exp_avg_sq = b * before + a * g^2

A gradient that passed may have moved what follows from it by as much as the function makes of
that, whatever one perturbed run happened to show: squares are carried by a few elements, of which
another run moves others. No constant of the optimizer is needed: a <= peak(state) / peak(g), and
the slope of a square is at most 2 a peak(g) = 2 peak(state) / peak(g).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from ttrace.analysis.tolerance.finer import part_norm
from ttrace.analysis.tolerance.yardstick import Yardstick
from ttrace.core.ids import Kind, TensorId
from ttrace.core.judgement import Limit, Tolerance
from ttrace.core.readings import Statistic

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


def _sum(one: Tolerance, other: Tolerance) -> Tolerance:
    more = {(limit.statistic, limit.dims): limit.allowed for limit in other.limits}
    limits = tuple(
        replace(limit, allowed=limit.allowed + more[limit.statistic, limit.dims])
        for limit in one.limits
        if (limit.statistic, limit.dims) in more
    )
    return replace(one, error_norm=one.error_norm + other.error_norm, limits=limits)


def _larger(own: Tolerance, other: Tolerance, source: str) -> Tolerance:
    """Limit by limit; where a gradient is judged by its norm alone, so is what follows from it."""
    theirs = {(limit.statistic, limit.dims): limit.allowed for limit in other.limits}
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
