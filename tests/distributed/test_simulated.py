"""Simulated ranks leave the traces of gloo processes, bit for bit; and 64 of them find bugs."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

import ttrace
from tests.support.simulating import contents, train_mesh, train_pipeline, train_random
from tests.support.tracing import explain
from ttrace.capture.settings import Settings
from ttrace.core.results import NotEquivalent
from ttrace.lab.functions import WorkerPool
from ttrace.testing import assert_equivalent
from ttrace.trace.reader import Trace
from zoo.simulated import CASES, WRONG_MODULE, Bug, Case, is_right, measure

OF_64 = [case for case in CASES if case.dp == 64]
OF_16 = [
    Case(dp=4, tp=4),
    Case(dp=4, tp=4, bug=Bug.WRONG_SLICE, module=WRONG_MODULE),
]


@pytest.mark.parametrize(
    ("train", "arguments"),
    [
        pytest.param(train_mesh, (4, 1, "ddp"), id="ddp"),
        pytest.param(train_mesh, (4, 1, "fsdp"), id="fsdp2"),
        pytest.param(train_mesh, (2, 2, "fsdp"), id="fsdp2-tensor-parallel"),
        pytest.param(train_mesh, (2, 2, "ddp"), id="replicated-tensor-parallel"),
        pytest.param(train_random, (), id="dropout"),
        pytest.param(train_pipeline, (), id="pipeline"),
    ],
)
def test_traces_are_those_of_processes_to_the_bit(
    pool: WorkerPool, tmp_path: Path, train: Callable[..., None], arguments: tuple[Any, ...]
) -> None:
    for name, on_ranks in (("processes", pool.run), ("simulated", pool.simulate)):
        variables = Settings(folder=tmp_path / name, steps=2).to_environment()
        on_ranks(4, train, *arguments, environment=variables)
    processes = contents(Trace.open(tmp_path / "processes"))
    assert len(processes) > 100
    assert contents(Trace.open(tmp_path / "simulated")) == processes


def train_split(ranks: int, wrong: bool = False) -> None:
    """Data parallel by hand; `wrong`: the last rank's gradient is not in the average."""
    model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))
    ttrace.generate_parameters(model)
    inputs = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wrapped = DistributedDataParallel(model) if ranks > 1 else model
    tracer = ttrace.attach(wrapped, optimizer)
    mine = inputs.chunk(ranks)[dist.get_rank()]
    with tracer.step():
        loss = wrapped(mine).square().mean()
        (loss * 0 if wrong and dist.get_rank() == ranks - 1 else loss).backward()
        optimizer.step()


def test_a_layout_is_tested_in_one_process(pool: WorkerPool) -> None:
    def compared(*, wrong: bool) -> None:
        assert_equivalent(
            train_split,
            train_split,
            world_size=16,
            reference_args=(1,),
            candidate_args=(16, wrong),
            isolate=False,
            pool=pool,
            simulated=True,
        )

    compared(wrong=False)
    with pytest.raises(NotEquivalent):
        compared(wrong=True)


@pytest.mark.flow
@pytest.mark.parametrize("case", [*OF_64, *OF_16], ids=lambda case: case.name)
def test_many_ranks_are_silent_when_correct_and_wrong_ones_are_placed(case: Case) -> None:
    measured = measure(case)
    assert is_right(measured), explain(measured.result)
