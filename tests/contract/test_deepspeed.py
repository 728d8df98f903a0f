"""DeepSpeedAdapter keeps the promises of every adapter, and its parts are what engines hold."""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("deepspeed")

import deepspeed
import torch
import torch.distributed as dist
from torch import nn

import ttrace
from ttrace.adapters.conformance import Case, run_conformance
from ttrace.adapters.deepspeed.adapter import DeepSpeedAdapter
from ttrace.adapters.registry import find_adapter
from ttrace.capture.settings import Settings
from ttrace.core.ids import MASTER, Kind
from ttrace.lab.functions import WorkerPool
from ttrace.trace.reader import Trace
from zoo.trainers.pool import trainers_pool

pytestmark = pytest.mark.flow


@pytest.fixture(scope="module")
def fresh_pool() -> Iterator[WorkerPool]:
    """A process for every run: engines keep what they know in global variables."""
    workers = trainers_pool(("deepspeed",))
    yield workers
    workers.close()


def engine_of(
    zero: int, *, bf16: bool = False, accumulate: int = 1, groups: int = 1, clip: float = 0.01
) -> Any:
    """Two layers, of which the second may be a group of its own."""
    os.environ |= {"RANK": str(dist.get_rank()), "LOCAL_RANK": str(dist.get_rank())}
    deepspeed.init_distributed("gloo", verbose=False)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10), nn.Tanh(), nn.Linear(10, 3))
    parameters: Any = model.parameters()
    if groups == 2:
        parameters = [{"params": model[0].parameters()}, {"params": model[2].parameters()}]
    engine, *_ = deepspeed.initialize(
        model=model,
        optimizer=torch.optim.AdamW(parameters, lr=0.1),
        config={
            "train_micro_batch_size_per_gpu": 2,
            "gradient_accumulation_steps": accumulate,
            "gradient_clipping": clip,
            "zero_optimization": {"stage": zero, "stage3_param_persistence_threshold": 8},
            "bf16": {"enabled": bf16},
        },
    )
    return engine


def one_backward(engine: Any) -> torch.Tensor:
    x = torch.arange(12, dtype=torch.float32).view(2, 6) / 12 + dist.get_rank()
    loss: torch.Tensor = engine(x).square().mean()
    engine.backward(loss)
    return loss


def conform(zero: int) -> None:
    def make_case() -> Case:
        engine = engine_of(zero)

        def step() -> torch.Tensor:
            loss = one_backward(engine)
            engine.step()
            return loss

        return Case(model=engine, optimizers=[engine.optimizer], step=step)

    run_conformance(find_adapter, make_case)


@pytest.mark.parametrize("zero", [0, 1, 2, 3])
def test_keeps_the_promises_of_an_adapter(zero: int, fresh_pool: WorkerPool) -> None:
    fresh_pool.run(2, conform, zero)


def cover(zero: int) -> tuple[dict[str, int], dict[str, int]]:
    """How many elements of each parameter, and of its fp32 copy, this rank holds."""
    adapter = DeepSpeedAdapter(engine_of(zero, groups=2))
    held, owned = {}, {}
    for parameter in adapter.parameters():
        name = f"{parameter.module}.{parameter.name}"
        held[name] = sum(p.tensor.numel() for p in adapter.parts(Kind.PARAM, parameter))
        found = adapter._owned[id(parameter.tensor)]
        owned[name] = found.stop - found.start
    return held, owned


SIZES = {"0.weight": 60, "0.bias": 10, "2.weight": 30, "2.bias": 3}


@pytest.mark.parametrize("zero", [1, 2, 3])
def test_ranges_of_all_ranks_are_every_element_once(zero: int, fresh_pool: WorkerPool) -> None:
    ranks = fresh_pool.run(2, cover, zero)
    for name, size in SIZES.items():
        assert sum(owned[name] for _, owned in ranks) == size
        assert sum(held[name] for held, _ in ranks) == size * (1 if zero == 3 else 2)


def fill(zero: int, bf16: bool) -> list[bool]:
    """Whether what is written into parts reaches all that the engine computes with."""
    engine = engine_of(zero, bf16=bf16)
    adapter = DeepSpeedAdapter(engine)
    for parameter in adapter.parameters():
        for part in adapter.parts(Kind.PARAM, parameter):
            with torch.no_grad():
                part.tensor.fill_(0.5)
        adapter.filled(Kind.PARAM, parameter)
    slots = {p.slot for each in adapter.parameters() for p in adapter.parts(Kind.PARAM, each)}
    assert any(slot.endswith(MASTER) for slot in slots) == bf16
    ranges = [adapter._owned[id(each.tensor)] for each in adapter.parameters()]
    return [bool((found.of(found.main) == 0.5).all()) for found in ranges]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("zero", [1, 3])
def test_values_written_into_parts_reach_the_copies(
    zero: int, bf16: bool, fresh_pool: WorkerPool
) -> None:
    assert all(all(rank) for rank in fresh_pool.run(2, fill, zero, bf16))


def record(zero: int, groups: int, *, outside: bool) -> None:
    # Clipping is seen only inside of a step.
    engine = engine_of(zero, accumulate=2, groups=groups, clip=0.0 if outside else 0.01)
    tracer = ttrace.attach(engine, engine.optimizer)
    for _ in range(2):
        with tracer.step():
            one_backward(engine)
            if not outside:
                engine.step()
        if outside:
            engine.step()


def record_both(folder: Path, zero: int, groups: int) -> None:
    for name in ("inside", "outside"):
        os.environ |= Settings(folder=folder / name, steps=1).to_environment()
        record(zero, groups, outside=name == "outside")


def recorded(folder: Path) -> Counter[Kind]:
    ranks = Trace.open(folder).ranks.values()
    return Counter(record.id.kind for rank in ranks for record in rank.records)


@pytest.mark.parametrize(("zero", "groups"), [(2, 2), (3, 1)])
def test_a_step_around_each_microbatch_ends_with_the_whole_update(
    zero: int, groups: int, fresh_pool: WorkerPool, tmp_path: Path
) -> None:
    fresh_pool.run(2, record_both, tmp_path, zero, groups)
    inside, outside = recorded(tmp_path / "inside"), recorded(tmp_path / "outside")
    clipped = {Kind.CLIPPED_GRAD, Kind.GRAD_NORM}
    assert outside == {kind: n for kind, n in inside.items() if kind not in clipped}
    assert inside[Kind.MAIN_GRAD] == inside[Kind.CLIPPED_GRAD] > 0
    assert inside[Kind.GRAD_NORM] == 2
    assert inside[Kind.PARAM_AFTER] == inside[Kind.PARAM] > 0
