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
# A scalar is one draw; clean clip norms reached 4.75 fp32 eps (measured), so 3 * 16 leaves room.
SCALAR_FLOOR_EPS = 16.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Yardstick:
    """What tolerances need to know of one logical tensor of the reference."""

    dtype: str
    volume: int
    sequence: int
    noise: tuple[Statistics, ...]
    jump: float = 0.0  # of one element of an updated parameter (core.unstable)


def tolerances(yardsticks: Mapping[TensorId, Yardstick]) -> dict[TensorId, Tolerance]:
    """The tolerance of every id that at least one perturbed reference has too."""
    loss_floor = _loss_floors(yardsticks)
    scales = _producer_scales(yardsticks)
    allowed = {
        id_: _tolerance(id_, yardstick, loss_floor.get(id_.step, 0.0), scales.get(_peers(id_), 0.0))
        for id_, yardstick in yardsticks.items()
        if yardstick.noise
    }
    for id_ in allowed:
        if id_.kind is Kind.PARAM and id_.step > 0:
            updated = replace(id_, step=id_.step - 1, kind=Kind.PARAM_AFTER)
            allowed[id_] = allowed.get(updated, allowed[id_])
    return allowed


def _tolerance(
    id_: TensorId, yardstick: Yardstick, loss_floor: float, producer_norm: float
) -> Tolerance:
    dtype = torch_dtype(yardstick.dtype)
    if not dtype.is_floating_point or (id_.kind is Kind.PARAM and id_.step == 0):
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
    if id_.kind is Kind.LOSS and loss_floor > floor:
        floor, source = loss_floor, "noise of the tensor it summarises"
    if noise >= floor:
        source = "noise of perturbed reference"
    return Tolerance(error_norm=FACTOR * max(noise, floor), source=f"{FACTOR:g} x {source}")


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
