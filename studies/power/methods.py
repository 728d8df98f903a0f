"""Ways to decide whether a tensor is wrong, side by side: what peers do, and what TTrace does.

Enters: one judged tensor. Leaves: its error in units of what the method allows; above 1, an alarm.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping

from ttrace.core.ids import TensorId
from ttrace.core.results import TensorResult
from ttrace.core.statistics import Statistic, Statistics
from ttrace.trace.dtypes import eps_of

Method = Callable[[TensorResult, int], float]

# NVIDIA's own test of a bound that grows with depth: k * C^(L+1-l) * eps.
_K, _C = 4.0, 1.03


def relative(limit: float) -> Method:
    """A constant on the relative norm."""
    return lambda result, _: _statistics(result).relative_error / limit


def quadratic(result: TensorResult, _: int) -> float:
    """1 - 2<x, y> / (<x, x> + <y, y>) against 1e-3, as SGLang's comparator has it."""
    found = _statistics(result)
    both = found.reference_norm**2 + found.candidate_norm**2
    return (found.error_norm**2 / both if both else 0.0) / 1e-3


def depth_bound(result: TensorResult, layers: int) -> float:
    """k * C^(L+1-l) * eps with l the layer of the tensor (0 before, L+1 after the layers)."""
    eps = eps_of(result.dtype)
    limit = _K * _C ** (layers + 1 - layer_of(result.id, layers)) * eps
    return _statistics(result).relative_error / limit


def norm_only(result: TensorResult, _: int) -> float:
    """The perturbed reference, but only its norm."""
    return next((j.ratio for j in result.judgements if j.reading.statistic is Statistic.NORM), 0.0)


def ours(result: TensorResult, _: int) -> float:
    """Every statistic against its own noise."""
    return result.ratio or 0.0


METHODS: Mapping[str, Method] = {
    "rel 1e-3": relative(1e-3),
    "rel 1e-2": relative(1e-2),
    "quadratic 1e-3": quadratic,
    "4*1.03^(L+1-l)*eps": depth_bound,
    "perturbed, norm only": norm_only,
    "ours": ours,
}


def layer_of(id_: TensorId, layers: int) -> int:
    """Layers count from 1; what comes before them is 0, what comes after them L + 1."""
    match = re.match(r"layers\.(\d+)", id_.module)
    if match:
        return int(match.group(1)) + 1
    return 0 if id_.module.startswith("tok_embeddings") else layers + 1


def comparable(result: TensorResult) -> bool:
    """Floating tensors with noise of their own: no peer has a rule for the others."""
    found = result.statistics
    return (
        found is not None
        and result.tolerance is not None
        and result.dtype in ("float32", "bfloat16")
        and found.count >= 2
        and found.reference_norm > 0
        and 0 < result.tolerance.error_norm < math.inf
    )


def _statistics(result: TensorResult) -> Statistics:
    assert result.statistics is not None
    return result.statistics
