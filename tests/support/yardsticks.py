"""Yardsticks made by hand, and what they allow."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from ttrace.analysis.tolerance import Factors, Yardstick, tolerances
from ttrace.core.ids import TensorId
from ttrace.core.statistics import Slice, Statistic, Statistics, Tolerance

FACTORS = {statistic: Factors(judged=1).of(statistic) for statistic in Statistic}
FACTOR = FACTORS[Statistic.NORM]
EPS = torch.finfo(torch.float32).eps
EPS_BF16 = torch.finfo(torch.bfloat16).eps


def noise(error: float, norm: float = 10.0) -> Statistics:
    return Statistics(
        count=100,
        error_norm=error,
        reference_norm=norm,
        candidate_norm=norm,
        dot=norm * norm,
        max_error=error / 4,
        error_sum=0.0,
        nonfinite_reference=0,
        nonfinite_candidate=0,
        unequal=1 if error else 0,
    )


def yardstick(*errors: float, norm: float = 10.0, **more: Any) -> Yardstick:
    plain = Yardstick(
        dtype="float32", volume=100, sequence=0, noise=tuple(noise(e, norm) for e in errors)
    )
    return replace(plain, **more)


def allow(**yardsticks: Yardstick) -> dict[str, Tolerance]:
    """By id; of step 0 where an id does not name its step."""
    found = tolerances({key(name): value for name, value in yardsticks.items()})
    return {str(id_).removeprefix("step0/"): tolerance for id_, tolerance in found.items()}


def key(name: str) -> TensorId:
    return TensorId.parse(name if name.startswith("step") else f"step0/{name}")


def allowed(name: str, *errors: float, norm: float = 10.0, **more: Any) -> Tolerance:
    (tolerance,) = allow(**{name: yardstick(*errors, norm=norm, **more)}).values()
    return tolerance


def peaked(error: float, *, norm: float, peak: float, **more: Any) -> Yardstick:
    """With all readings, of a matrix of 10 by 10."""
    rows = (Slice(dims=(0,), index=(3,), error_norm=error / 3),)
    found = replace(noise(error, norm), peak=peak, slices=rows)
    return replace(yardstick(error), noise=(found,), shape=(10, 10), **more)


def limits_of(tolerance: Tolerance) -> dict[Statistic, float]:
    return {limit.statistic: limit.allowed for limit in tolerance.limits}
