"""Watched Megatron runs: replicas of data and tensor parallel ranks agree, unless a sum lacks."""

from pathlib import Path
from typing import Any

import pytest

from tests.support.watching import watched
from ttrace.core.drift import SharedKind
from ttrace.lab.functions import WorkerPool
from zoo.bug import Family
from zoo.megatron.training import changed, on_ranks
from zoo.registry import find

SMALL = {"layers": 2, "microbatches": 4, "steps": 3}
GRADIENT, PARAMETER = SharedKind.GRADIENT, SharedKind.PARAMETER


@pytest.mark.parametrize(
    ("ranks", "layout"),
    [
        (2, {}),
        (2, {"zero1": True}),
        (2, {"tp": 2, "sp": True}),
        (4, {"tp": 2, "sp": True, "zero1": True}),
        (4, {"pp": 2}),
        (2, {"experts": 4, "ep": 2}),
    ],
    ids=lambda value: (
        "-".join(f"{k}{int(v)}" for k, v in value.items()) or "dp"
        if isinstance(value, dict)
        else str(value)
    ),
)
def test_a_correct_run_is_silent(
    ranks: int, layout: dict[str, Any], pool: WorkerPool, tmp_path: Path
) -> None:
    function = on_ranks(ranks, SMALL | layout)
    run = watched(pool, tmp_path, ranks, function.train, *function.arguments)
    assert (run.drifts, run.broke_off, run.watched) == ((), None, 3), run
    assert run.compared[PARAMETER] > 0
    # Of ZeRO-1 alone, every rank has the gradients of a range of its own.
    assert (run.compared.get(GRADIENT, 0) > 0) == (layout != {"zero1": True})
    assert run.unjudged.keys() <= {SharedKind.BUFFER}


def test_norms_whose_gradients_are_not_summed_over_tensor_ranks_drift(
    pool: WorkerPool, tmp_path: Path
) -> None:
    function = changed(find("norms-unmarked", Family.MEGATRON).candidate, **SMALL)
    run = watched(pool, tmp_path, function.ranks, function.train, *function.arguments)
    assert run.drifts[0].step == 0
    assert all("norm" in f"{drift.module}.{drift.name}" for drift in run.drifts), run.drifts
    assert {drift.kind for drift in run.drifts} == {PARAMETER}
