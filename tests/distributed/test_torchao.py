"""torchao's tensor parallelism in float8, where it is installed: all is recorded, none alarms."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

from tests.support.torchao_train import train
from tests.support.tracing import explain
from ttrace.core.ids import TensorId
from ttrace.core.results import Verdict
from ttrace.lab.experiment import Experiment
from ttrace.lab.functions import WorkerPool
from ttrace.lab.launch import LocalExecutor
from ttrace.lab.run import Function
from ttrace.trace.quantised import form_of, is_quantised
from ttrace.trace.reader import Trace

pytestmark = [
    pytest.mark.flow,
    pytest.mark.extras,
    pytest.mark.skipif(
        importlib.util.find_spec("torchao") is None, reason="torchao is not installed"
    ),
]


def test_inputs_that_are_given_in_fp8_are_recorded_and_alarm_nobody(
    pool: WorkerPool, tmp_path: Path
) -> None:
    result = Experiment(
        reference=Function(train),
        candidate=Function(train, 2),
        folder=tmp_path,
        execute=LocalExecutor(pool),
    ).diff()
    assert not any(tensor.verdict is Verdict.MISMATCH for tensor in result.tensors), explain(result)
    trace = Trace.open(tmp_path / "candidate")
    for layer in ("gate", "up"):
        for record in trace.by_id()[TensorId.parse(f"step0/1.{layer}:input.0")]:
            assert is_quantised(record)
            form = form_of(record)
            assert (form.codes, form.block, form.divides) == ("float8_e4m3fn", (4, 16, 64), True)
    for rank in trace.ranks.values():
        assert rank.summary is not None
        assert rank.summary.faults == ()
