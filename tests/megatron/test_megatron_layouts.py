"""Megatron-Core in several layouts against one process: the whole step, and no alarm."""

from typing import Any

import pytest

from tests.support.tracing import explain
from ttrace.core.ids import Kind
from zoo.megatron.training import alone, on_ranks
from zoo.trials import Trials

# The rest of the matrix is run by `make bench-megatron`.
LAYOUTS: dict[str, tuple[int, dict[str, Any]]] = {
    "tp2-sp": (2, {"tp": 2, "sp": True}),
    "dp2-zero1": (2, {"zero1": True}),
    "dp2-zero1-bf16": (2, {"zero1": True, "bf16": True}),
    "pp2": (2, {"pp": 2}),
    "pp2-vpp2-dp2-zero1-overlapped": (
        4,
        {"pp": 2, "vpp": 2, "zero1": True, "overlap": True, "gather_late": True},
    ),
    "cp2": (2, {"cp": 2}),
    "tp2-sp-recompute": (2, {"tp": 2, "sp": True, "recompute": "full"}),
    "tp2-sp-ep2": (2, {"tp": 2, "sp": True, "ep": 2, "etp": 1, "experts": 4}),
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_a_correct_layout_is_equivalent(name: str, trials: Trials) -> None:
    ranks, layout = LAYOUTS[name]

    result = trials.compare(alone(layout), on_ranks(ranks, layout))

    assert result.exit_code == 0, explain(result)
    judged = {found.id.kind for found in result.tensors}
    assert judged == set(Kind) - {Kind.BUFFER}
    assert not result.coverage.faults
    assert result.coverage.hooks_fired == result.coverage.hooks_expected
