"""Bugs around experts: an isolated run gives them the reference's tokens, and names one place."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.tracing import explain, places
from ttrace.core.results import CheckResult
from zoo.megatron.training import isolate, trace
from zoo.workers import WorkerPool

MODEL = {"experts": 4, "layers": 2, "microbatches": 2}
LAYOUTS = [
    pytest.param(MODEL | {"ep": 2}, id="ep2"),
    pytest.param(
        MODEL | {"tp": 2, "sp": True, "ep": 2, "etp": 1}, id="tp2-sp-ep2", marks=pytest.mark.slow
    ),
]
EXPERT = "decoder.layers.1.mlp.experts.local_experts.1.linear_fc2"


def isolated(pool: WorkerPool, folder: Path, layout: dict[str, Any], bug: str) -> CheckResult:
    candidate = trace(pool, folder / "candidate", 2, bug, **layout)
    return isolate(pool, folder, candidate, 2, layout, reference=MODEL, bug=bug)


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize(
    ("bug", "where", "part"),
    [
        ("expert-forward", EXPERT, "forward"),
        ("expert-backward", EXPERT, "backward"),
        ("router-choice", "decoder.layers.1.mlp.router", "forward"),
        ("dispatcher-order", "decoder.layers.1.mlp", "forward"),
    ],
)
def test_one_place_is_named(
    bug: str, where: str, part: str, layout: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    result = isolated(pool, tmp_path, layout, bug)
    assert places(result) == [(where, part)], explain(result)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_correct_experts_are_silent(
    layout: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    result = isolated(pool, tmp_path, layout, "")
    assert result.exit_code == 0, explain(result)
    assert not result.coverage.faults
