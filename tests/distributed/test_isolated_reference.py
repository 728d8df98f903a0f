"""Isolated, a reference is bitwise itself at every point, also when it is distributed."""

from pathlib import Path

import pytest

from tests.support.tracing import TrainConfig, check, explain, trace_in_pool
from ttrace.analysis.isolate import write_plans
from ttrace.lab.functions import WorkerPool

LAYOUTS = {
    "fsdp": TrainConfig(dp=2),
    "ddp": TrainConfig(dp=2, data_parallel="ddp"),
    "tp": TrainConfig(tp=2, sequence_parallel=False),
    "tp-sp": TrainConfig(tp=2),
    "ddp-bf16": TrainConfig(dp=2, data_parallel="ddp", dtype="bfloat16"),
    "tp-sp-tied": TrainConfig(tp=2, tied=True),
    "fsdp-tp-sp": TrainConfig(dp=2, tp=2),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_distributed_reference_is_bitwise_itself(
    layout: str, pool: WorkerPool, tmp_path: Path
) -> None:
    config = LAYOUTS[layout]
    tapped = trace_in_pool(config, tmp_path / "tapped", pool, tap=True)
    write_plans(tapped, tapped, tmp_path / "plans")
    isolated = trace_in_pool(config, tmp_path / "isolated", pool, plan=tmp_path / "plans")
    result = check(tapped, isolated)
    assert result.compared > 300
    unequal = [r for r in result.tensors if r.statistics is None or not r.statistics.equal]
    assert unequal == [], explain(result)
    assert result.coverage.faults == ()
