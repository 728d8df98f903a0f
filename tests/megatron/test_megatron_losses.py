"""Auxiliary losses of Megatron-Core are numbers of their own: judged in every layout."""

from typing import Any

import pytest

from tests.support.tracing import explain
from ttrace.core.blame import Blame, Phase
from zoo.bug import Family
from zoo.megatron.training import alone, on_ranks
from zoo.registry import find
from zoo.trials import Trials, blames

SMALL = {"layers": 2, "microbatches": 2}
EXPERTS = SMALL | {"experts": 4, "z_loss": 0.01}
LOSSES = {
    f"decoder.layers.{layer}.mlp.router:output.{name}"
    for layer in range(2)
    for name in ("load_balancing_loss", "z_loss")
}


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "sp": True}, {"cp": 2}, {"ep": 2}, {"tp": 2, "sp": True, "recompute": "full"}],
    ids=["tp2-sp", "cp2", "ep2", "tp2-sp-recompute"],
)
def test_shares_of_all_ranks_are_the_loss(layout: dict[str, Any], trials: Trials) -> None:
    result = trials.compare(alone(EXPERTS), on_ranks(2, EXPERTS | layout))
    assert result.exit_code == 0, explain(result)
    assert not result.coverage.faults
    assert {str(found.id).removeprefix("step0/") for found in result.tensors} >= LOSSES


def test_the_loss_of_a_multi_token_head_is_an_output_of_the_model(trials: Trials) -> None:
    model = SMALL | {"mtp": 1}
    result = trials.compare(alone(model), on_ranks(2, model | {"tp": 2, "sp": True}))
    assert result.exit_code == 0, explain(result)
    assert "step0/:output.mtp_loss" in {str(found.id) for found in result.tensors}


@pytest.mark.parametrize(
    ("name", "first"),
    [
        ("balance-coefficient", "decoder.layers.0.mlp.router"),
        ("z-loss-context", "decoder.layers.0.mlp.router"),
        ("head-coefficient", ""),
    ],
)
def test_a_wrong_coefficient_is_named(name: str, first: str, trials: Trials) -> None:
    bug = find(name, Family.MEGATRON)
    result = trials.compare(bug.reference, bug.candidate)
    blame = Blame.of(first, phase=Phase.FORWARD)
    assert blame in bug.expected
    assert blames(result) == (blame,), explain(result)
    assert "a constant factor of 2" in explain(result)
