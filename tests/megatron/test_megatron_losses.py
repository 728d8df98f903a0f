"""Auxiliary losses of Megatron-Core are numbers of their own: judged in every layout."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import explain, places
from ttrace.analysis.check import check
from ttrace.core.results import CheckResult
from zoo.megatron.training import MODEL_FIELDS, trace
from zoo.workers import WorkerPool

SMALL = {"layers": 2, "microbatches": 2}
EXPERTS = SMALL | {"experts": 4, "z_loss": 0.01}
LOSSES = {
    f"decoder.layers.{layer}.mlp.router:output.{name}"
    for layer in range(2)
    for name in ("load_balancing_loss", "z_loss")
}


def compared(
    pool: WorkerPool, references: Callable[..., Any], folder: Path, bug: str, **layout: Any
) -> CheckResult:
    reference, noisy = references(**{k: v for k, v in layout.items() if k in MODEL_FIELDS})
    candidate = trace(pool, folder / "candidate", 2, bug, **layout)
    return check(reference, candidate, perturbed=[noisy])


@pytest.mark.parametrize(
    "layout",
    [{"tp": 2, "sp": True}, {"cp": 2}, {"ep": 2}, {"tp": 2, "sp": True, "recompute": "full"}],
    ids=["tp2-sp", "cp2", "ep2", "tp2-sp-recompute"],
)
def test_shares_of_all_ranks_are_the_loss(
    layout: dict[str, Any], pool: WorkerPool, references: Callable[..., Any], tmp_path: Path
) -> None:
    result = compared(pool, references, tmp_path, "", **EXPERTS, **layout)
    assert result.exit_code == 0, explain(result)
    assert not result.coverage.faults
    assert {str(found.id).removeprefix("step0/") for found in result.tensors} >= LOSSES


def test_the_loss_of_a_multi_token_head_is_an_output_of_the_model(
    pool: WorkerPool, references: Callable[..., Any], tmp_path: Path
) -> None:
    result = compared(pool, references, tmp_path, "", **SMALL, mtp=1, tp=2, sp=True)
    assert result.exit_code == 0, explain(result)
    assert "step0/:output.mtp_loss" in {str(found.id) for found in result.tensors}


@pytest.mark.parametrize(
    ("bug", "where", "layout"),
    [
        ("balance-coefficient", "decoder.layers.0.mlp.router", EXPERTS | {"tp": 2, "sp": True}),
        ("z-loss-context", "decoder.layers.0.mlp.router", EXPERTS | {"cp": 2}),
        ("head-coefficient", "(model)", SMALL | {"mtp": 1, "tp": 2, "sp": True}),
    ],
)
def test_a_wrong_coefficient_is_named(
    bug: str,
    where: str,
    layout: dict[str, Any],
    pool: WorkerPool,
    references: Callable[..., Any],
    tmp_path: Path,
) -> None:
    result = compared(pool, references, tmp_path, bug, **layout)
    assert places(result) == [(where, "forward")], explain(result)
    assert "a constant factor of 2" in explain(result)
