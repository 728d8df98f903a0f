"""NativeAdapter keeps the promises of every adapter, in each layout that it knows."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.parallel import (
    ColwiseParallel,
    RowwiseParallel,
    SequenceParallel,
    parallelize_module,
)
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import ttrace
from ttrace.adapters.conformance import Case, run_conformance
from ttrace.adapters.native.adapter import NativeAdapter
from ttrace.capture.settings import Settings
from ttrace.lab.functions import WorkerPool


def plain() -> nn.Module:
    return nn.Sequential(
        nn.Linear(4, 8), nn.LayerNorm(8), nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 4))
    )


def data_parallel() -> nn.Module:
    return DistributedDataParallel(plain())


def fully_sharded() -> nn.Module:
    model, mesh = plain(), init_device_mesh("cpu", (2,), mesh_dim_names=("dp",))
    for part in (*model.children(), model):
        fully_shard(part, mesh=mesh)
    return model


def tensor_parallel() -> nn.Module:
    model, mesh = plain(), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {"2.0": ColwiseParallel(), "2.2": RowwiseParallel()}
    return parallelize_module(model, mesh, plan)


def sequence_parallel() -> nn.Module:
    model, mesh = plain(), init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
    plan = {
        "0": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(0)),
        "1": SequenceParallel(sequence_dim=0, use_local_output=True),
        "2.0": ColwiseParallel(input_layouts=Shard(0)),
        "2.2": RowwiseParallel(),
    }
    return parallelize_module(model, mesh, plan)


LAYOUTS: dict[str, Callable[[], nn.Module]] = {
    "plain": plain,
    "ddp": data_parallel,
    "fsdp2": fully_sharded,
    "tp": tensor_parallel,
    "sp": sequence_parallel,
}


def make_case(layout: str) -> Case:
    torch.manual_seed(0)
    model = LAYOUTS[layout]()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    x = torch.randn(2, 6, 4)
    splits_batch = layout in ("ddp", "fsdp2")

    def step() -> torch.Tensor:
        loss: torch.Tensor = model(x[dist.get_rank() if splits_batch else 0]).square().mean()
        loss.backward()
        if layout != "tp":  # torch cannot clip plain parameters together with DTensors
            clip_grad_norm_(model.parameters(), 0.01)
        optimizer.step()
        return loss

    return Case(model=model, optimizers=[optimizer], step=step)


def conform(layout: str) -> None:
    run_conformance(NativeAdapter, lambda: make_case(layout))


def test_a_plain_model() -> None:
    conform("plain")


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "plain"])
def test_on_two_ranks(layout: str, pool: WorkerPool) -> None:
    pool.run(2, conform, layout)


def traced(layout: str) -> list[list[float]]:
    """The loss, the gradients and the parameters of this rank after a step that may be traced."""
    case = make_case(layout)
    with ttrace.attach(case.model, case.optimizers).step():
        loss = case.step()
    assert loss is not None
    gradients = [parameter.grad for parameter in case.model.parameters()]
    numbers = [loss, *(gradient for gradient in gradients if gradient is not None)]
    return [local(number).flatten().tolist() for number in [*numbers, *case.model.parameters()]]


def local(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach()


@pytest.mark.parametrize("layout", [name for name in LAYOUTS if name != "plain"])
def test_a_traced_step_is_bitwise_the_untraced_one(
    layout: str, pool: WorkerPool, tmp_path: Path
) -> None:
    environment = Settings(folder=tmp_path / "trace").to_environment()
    assert pool.run(2, traced, layout, environment=environment) == pool.run(2, traced, layout)
    assert (tmp_path / "trace").exists()
