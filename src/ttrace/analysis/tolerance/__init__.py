"""Stage 4 of 8: tolerance.

Enters: statistics of perturbed references against the reference. Leaves: for every id, how far
rounding may move it. It must not know the candidate.

    tolerance = factor * max(noise, floor)

`noise` is the distance between the reference and perturbed references. `floor` stands in where a
draw says too little: tensors that no perturbation reached, scalars, those that few elements carry,
and zeros. Finer statistics have limits of their own, by the same rule (finer.py); factors follow
from a rate of false alarms (factors.py); what is made of gradients inherits their tolerance
(derived.py).
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import replace

import torch

from ttrace.analysis.tolerance.derived import Peers, derive, loss_floors, norm_floors
from ttrace.analysis.tolerance.factors import (
    ALARM_RATE,
    BIAS,
    CHOICES_FACTOR,
    CHOICES_MORE,
    Factors,
)
from ttrace.analysis.tolerance.finer import Correlation, correlations, family, finer_limits
from ttrace.analysis.tolerance.yardstick import Drawn, Key, Yardstick, yardsticks
from ttrace.core.ids import Kind, TensorId
from ttrace.core.statistics import Limit, Statistic, Tolerance
from ttrace.trace.dtypes import eps_of, torch_dtype

__all__ = [
    "ALARM_RATE",
    "SCALAR_FLOOR_EPS",
    "Factors",
    "Yardstick",
    "allowed_moves",
    "tolerances",
    "yardsticks",
]

# A scalar is one draw; clean clip norms reached 4.75 fp32 eps (measured), so 3 * 16 leaves room.
SCALAR_FLOOR_EPS = 16.0


def tolerances(
    known: Mapping[TensorId, Yardstick], *, isolated: bool = False
) -> dict[TensorId, Tolerance]:
    """The tolerance of every id that at least one perturbed reference has too."""
    floors = {Kind.LOSS: loss_floors(known), Kind.GRAD_NORM: norm_floors(known)}
    peers = Peers.of(known)
    shared = correlations(known)
    drawn = {id_: yardstick.drawn() for id_, yardstick in known.items() if yardstick.is_usable}
    factors = Factors(judged=sum(map(len, drawn.values())))
    allowed = {
        id_: _tolerance(
            id_,
            known[id_],
            readings,
            summary_floor=floors.get(id_.kind, {}).get(id_.step, 0.0),
            peers=peers,
            correlation=shared.get(family(id_), Correlation()),
            factors=factors,
        )
        for id_, readings in drawn.items()
    }
    exact = {id_: tolerance for id_, tolerance in allowed.items() if _is_exact(id_)}
    allowed = derive(allowed, known, isolated=isolated) | exact
    for id_ in allowed:
        if id_.kind is Kind.PARAM and id_.step > 0:
            updated = replace(id_, step=id_.step - 1, kind=Kind.PARAM_AFTER)
            allowed[id_] = allowed.get(updated, allowed[id_])
    return {id_: _binding(tolerance) for id_, tolerance in allowed.items()}


def _tolerance(
    id_: TensorId,
    yardstick: Yardstick,
    readings: Mapping[Key, Drawn],
    *,
    summary_floor: float,
    peers: Peers,
    correlation: Correlation,
    factors: Factors,
) -> Tolerance:
    dtype = torch_dtype(yardstick.dtype)
    if not dtype.is_floating_point or _is_exact(id_):
        return _of_choices(id_, yardstick)
    unit = readings[Statistic.NORM, ()]
    factor = factors.of(Statistic.NORM, unit.draws)
    floor, source = _floor(id_, yardstick, eps_of(dtype), peers)
    if summary_floor > floor:
        floor, source = summary_floor, "noise of the tensors it summarises"
    if unit.mean >= floor:
        source = "noise of perturbed reference"
    return Tolerance(
        error_norm=max(factor * max(unit.mean, floor), BIAS * unit.largest),
        source=f"{factor:.2g} x {source}",
        noise=unit.mean,
        limits=finer_limits(
            yardstick, readings, norm_floor=floor, factors=factors, correlation=correlation
        ),
        cells=yardstick.cells,
    )


def _floor(id_: TensorId, yardstick: Yardstick, eps: float, peers: Peers) -> tuple[float, str]:
    """What stands in for noise where one draw says too little, and why."""
    norm = yardstick.reference_norm
    if id_.kind is Kind.GRAD_NORM:
        # Added up in fp32; in a lower dtype only the few results of its steps are rounded.
        few = max(eps, SCALAR_FLOOR_EPS * eps_of(torch.float32))
        return few * norm, "rounding of a norm"
    if id_.kind is Kind.PARAM_AFTER:
        floor = max(yardstick.jump.element, yardstick.jump.norm)
        return floor, "what rounding of the gradient does to the update"
    if norm == 0:
        return eps * peers.norm(id_), "eps of tensors of its kind, since it is zero"
    floor, source = eps * norm, "eps of its dtype"
    if yardstick.volume == 1:
        floor, source = SCALAR_FLOOR_EPS * eps * norm, f"{SCALAR_FLOOR_EPS:g} eps"
    summary = id_.kind is Kind.LOSS  # which has a floor of its own
    if yardstick.is_tiny and not summary and peers.relative_noise(id_) * norm > floor:
        floor, source = peers.relative_noise(id_) * norm, "noise of tensors of its kind"
    return floor, source


def _of_choices(id_: TensorId, yardstick: Yardstick) -> Tolerance:
    """Whole numbers must be equal, but for close calls that noise decides otherwise too."""
    flips = max(statistics.unequal for statistics in yardstick.noise)
    if flips == 0 or _is_exact(id_):
        return Tolerance(error_norm=0.0, source="must be equal")
    most = CHOICES_FACTOR * flips + CHOICES_MORE
    return Tolerance(
        error_norm=math.inf,
        source=f"{CHOICES_FACTOR:g} x choices that noise changed, and {CHOICES_MORE:g} more",
        limits=(Limit(statistic=Statistic.CHOICES, dims=(), allowed=most),),
    )


def _binding(tolerance: Tolerance) -> Tolerance:
    """Without limits that can only be exceeded when the norm's is: no part is larger than all."""
    limits = tuple(
        limit
        for limit in tolerance.limits
        if limit.statistic is Statistic.CHOICES or limit.allowed < tolerance.error_norm
    )
    return replace(tolerance, limits=limits)


def _is_exact(id_: TensorId) -> bool:
    """Nothing was computed yet, or only counted."""
    counted = id_.kind is Kind.OPTIMIZER and id_.slot.endswith(".step")
    return counted or (id_.kind is Kind.PARAM and id_.step == 0)


def allowed_moves(moved_by_noise: Iterable[int]) -> float:
    """How many tokens of one expert may move; none where noise moves none at any of them."""
    most = max(moved_by_noise, default=0)
    return CHOICES_FACTOR * most + CHOICES_MORE if most else 0.0
