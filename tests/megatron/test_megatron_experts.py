"""Bugs around experts: an isolated run gives them the reference's tokens, and names one place."""

from typing import Any

import pytest

from tests.support.tracing import explain
from zoo.bug import Family
from zoo.megatron.training import alone, changed, on_ranks
from zoo.registry import find
from zoo.trials import Trials, blames

MODEL = {"experts": 4, "layers": 2, "microbatches": 2}
LAYOUTS = [
    pytest.param({"ep": 2}, id="ep2"),
    pytest.param({"tp": 2, "sp": True, "ep": 2, "etp": 1}, id="tp2-sp-ep2"),
]


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    "name", ["expert-forward", "expert-backward", "router-choice", "dispatcher-order"]
)
def test_one_place_is_named(name: str, layout: dict[str, Any], trials: Trials) -> None:
    bug = find(name, Family.MEGATRON)
    result = trials.isolate(bug.reference, changed(bug.candidate, **layout))
    assert len(bug.expected) == 1
    assert bug.is_named_by(blames(result)), explain(result)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_correct_experts_are_silent(layout: dict[str, Any], trials: Trials) -> None:
    result = trials.isolate(alone(MODEL), on_ranks(2, MODEL | layout))
    assert result.exit_code == 0, explain(result)
    assert not result.coverage.faults
