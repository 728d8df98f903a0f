"""Stage 3 of 7: tolerance.

Enters: statistics of perturbed references against the reference. Leaves: for every id, how far
rounding may move it. It must not know the candidate.

    tolerance = FACTOR * max(noise, floor)

`noise` is the largest distance between the reference and a perturbed reference. `floor` stands in
where one draw says too little: tensors that no perturbation reached, scalars, and zeros.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.results import Tolerance
from ttrace.core.spans import torch_dtype
from ttrace.core.statistics import Statistics

# A correct candidate's norm error is at most 1.2 times (bf16) and 2.3 times (fp32, inputs perturbed
# but not weights) that of one perturbed run; we perturb weights too. Measured, docs/explanation.
FACTOR = 3.0
# In an isolated run only the inputs of one module are noisy, but a reordered fp32 sum also rounds
# its partial sums: weight gradients of correct candidates reached 2.5 times the noise (60 runs).
ISOLATED_FACTOR = 5.0
# A scalar is one draw; clean clip norms reached 4.75 fp32 eps (measured), so 3 * 16 leaves room.
SCALAR_FLOOR_EPS = 16.0


# What was multiplied by a clipped gradient's coefficient; second moments take its square.
_SCALED_BY_NORM = {Kind.CLIPPED_GRAD: 1.0, Kind.OPTIMIZER: 2.0}


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What tolerances need to know of one logical tensor of the reference."""

    dtype: str
    volume: int
    sequence: int
    noise: tuple[Statistics, ...]
    jump: float = 0.0  # of one element of an updated parameter (core.unstable)


def tolerances(
    yardsticks: Mapping[TensorId, Yardstick], *, isolated: bool = False
) -> dict[TensorId, Tolerance]:
    """The tolerance of every id that at least one perturbed reference has too."""
    floors = {Kind.LOSS: _loss_floors(yardsticks), Kind.GRAD_NORM: _norm_floors(yardsticks)}
    scales = _producer_scales(yardsticks)
    allowed = {
        id_: _tolerance(
            id_,
            yardstick,
            summary_floor=floors.get(id_.kind, {}).get(id_.step, 0.0),
            producer_norm=scales.get(_peers(id_), 0.0),
            factor=_factor(yardstick, isolated=isolated),
        )
        for id_, yardstick in yardsticks.items()
        if yardstick.noise
    }
    for id_, tolerance in allowed.items():
        if id_.kind in _SCALED_BY_NORM:
            allowed[id_] = _with_norm(id_, tolerance, yardsticks, allowed)
    for id_ in allowed:
        if id_.kind is Kind.PARAM and id_.step > 0:
            updated = replace(id_, step=id_.step - 1, kind=Kind.PARAM_AFTER)
            allowed[id_] = allowed.get(updated, allowed[id_])
    return allowed


def _factor(yardstick: Yardstick, *, isolated: bool) -> float:
    wide = yardstick.dtype in ("float32", "float64")
    return ISOLATED_FACTOR if isolated and wide else FACTOR


def _tolerance(
    id_: TensorId,
    yardstick: Yardstick,
    *,
    summary_floor: float,
    producer_norm: float,
    factor: float,
) -> Tolerance:
    dtype = torch_dtype(yardstick.dtype)
    if not dtype.is_floating_point or _is_exact(id_):
        return Tolerance(error_norm=0.0, source="must be equal")
    noise = max(statistics.error_norm for statistics in yardstick.noise)
    reference_norm = yardstick.noise[0].reference_norm
    eps = float(torch.finfo(dtype).eps)
    floor, source = eps * reference_norm, "eps of its dtype"
    if yardstick.volume == 1:
        floor, source = SCALAR_FLOOR_EPS * eps * reference_norm, f"{SCALAR_FLOOR_EPS:g} eps"
    if reference_norm == 0:
        floor, source = eps * producer_norm, "eps of tensors of its kind, since it is zero"
    if id_.kind is Kind.PARAM_AFTER:
        floor, source = yardstick.jump, "what rounding does to one element of the update"
    if id_.kind is Kind.GRAD_NORM:
        # Added up in fp32; in a lower dtype only the few results of its steps are rounded.
        few = max(eps, SCALAR_FLOOR_EPS * float(torch.finfo(torch.float32).eps))
        floor, source = few * reference_norm, "rounding of a norm"
    if summary_floor > floor:
        floor, source = summary_floor, "noise of the tensors it summarises"
    if noise >= floor:
        source = "noise of perturbed reference"
    return Tolerance(error_norm=factor * max(noise, floor), source=f"{factor:g} x {source}")


def _is_exact(id_: TensorId) -> bool:
    """Nothing was computed yet, or only counted."""
    counted = id_.kind is Kind.OPTIMIZER and id_.slot.endswith(".step")
    return counted or (id_.kind is Kind.PARAM and id_.step == 0)


def _with_norm(
    id_: TensorId,
    tolerance: Tolerance,
    yardsticks: Mapping[TensorId, Yardstick],
    allowed: Mapping[TensorId, Tolerance],
) -> Tolerance:
    """What the norm may be off by relatively, all that is scaled by it may be off too."""
    norm = TensorId(step=id_.step, module="", kind=Kind.GRAD_NORM)
    if norm not in allowed or _is_exact(id_):
        return tolerance
    size = yardsticks[norm].noise[0].reference_norm
    share = allowed[norm].error_norm / size if size else 0.0
    scaled = _SCALED_BY_NORM[id_.kind] * share * yardsticks[id_].noise[0].reference_norm
    if scaled <= tolerance.error_norm:
        return tolerance
    return Tolerance(error_norm=scaled, source="tolerance of the gradient norm")


def _norm_floors(yardsticks: Mapping[TensorId, Yardstick]) -> dict[int, float]:
    """How far the noise of the main gradients moves their norm N, to second order.

    A random change d of the n elements of a gradient g is nearly orthogonal to it: it moves N by
    about |g| |d| / sqrt(n) / N, and always makes it larger by |d|^2 / 2N.
    """
    squares: dict[int, list[float]] = {}
    for id_, gradient in yardsticks.items():
        if id_.kind is Kind.MAIN_GRAD and gradient.noise:
            change = max(statistics.error_norm for statistics in gradient.noise)
            size = gradient.noise[0].reference_norm
            along = (size * change) ** 2 / max(1, gradient.volume)
            sums = squares.setdefault(id_.step, [0.0, 0.0, 0.0])
            for index, square in enumerate((size**2, along, change**2)):
                sums[index] += square
    return {
        step: (math.sqrt(along) + across / 2) / math.sqrt(size)
        for step, (size, along, across) in squares.items()
        if size
    }


def _loss_floors(yardsticks: Mapping[TensorId, Yardstick]) -> dict[int, float]:
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
            change = max(statistics.error_norm for statistics in output.noise)
            slope = gradient.noise[0].reference_norm
            floors[id_.step] = change * slope / math.sqrt(output.volume)
    return floors


def _peers(id_: TensorId) -> tuple[int, Kind]:
    return id_.step, id_.kind


def _producer_scales(
    yardsticks: Mapping[TensorId, Yardstick],
) -> dict[tuple[int, Kind], float]:
    """The median norm of the tensors of each kind, for those whose own norm is zero."""
    norms: dict[tuple[int, Kind], list[float]] = {}
    for id_, yardstick in yardsticks.items():
        if yardstick.noise and yardstick.noise[0].reference_norm > 0:
            norms.setdefault(_peers(id_), []).append(yardstick.noise[0].reference_norm)
    return {key: _median(values) for key, values in norms.items()}


def _median(values: Iterable[float]) -> float:
    ordered = sorted(values)
    return ordered[len(ordered) // 2]
