"""A norm is judged by how norms round where this one was made."""

from __future__ import annotations

import pytest

from ttrace.analysis.tolerance import Yardstick, tolerances
from ttrace.core.ids import Kind, TensorId
from ttrace.core.statistics import Statistics

EPS = 2.0**-23
SIZE = 2**20
NORM = TensorId(step=0, module="", kind=Kind.GRAD_NORM, slot="")
GRADIENT = TensorId(step=0, module="w", kind=Kind.MAIN_GRAD, slot="weight")


def yardstick(norm: float, volume: int) -> Yardstick:
    statistics = Statistics(
        count=volume, error_norm=0.0, reference_norm=norm, candidate_norm=norm, dot=norm**2,
        max_error=0.0, error_sum=0.0, nonfinite_reference=0, nonfinite_candidate=0, unequal=0,
    )  # fmt: skip
    return Yardstick(dtype="float32", volume=volume, sequence=0, noise=(statistics,))


def allowed(recorded: float, volume: int = SIZE) -> float:
    known = {GRADIENT: yardstick(1.0, volume), NORM: yardstick(recorded, 1)}
    return tolerances(known)[NORM].error_norm


def test_a_norm_that_drifts_by_rounding_may_drift_less_elsewhere() -> None:
    """As torch's on a CPU does, where a rank that holds half of a tensor makes half the sum."""
    assert allowed(1.0) < 84 * EPS
    assert 84 * EPS < allowed(1.0 - 84 * EPS) < 84 * 6 * EPS


@pytest.mark.parametrize(("recorded", "volume"), [(0.99, SIZE), (1.0 - 84 * EPS, 2**14)])
def test_what_no_rounding_explains_is_no_drift(recorded: float, volume: int) -> None:
    assert allowed(recorded, volume) == pytest.approx(allowed(recorded, 1))
