"""Every layout starts from bitwise the same logical parameters as one process."""

import math
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

import ttrace
from ttrace.demo.train import TrainConfig, build
from ttrace.errors import UsageError
from ttrace.lab.functions import WorkerPool

LAYOUTS = {
    "ddp": TrainConfig(dp=2, data_parallel="ddp"),
    "fsdp": TrainConfig(dp=2),
    "fsdp-4": TrainConfig(dp=4),
    "tp": TrainConfig(tp=2),
    "fsdp-tp": TrainConfig(dp=2, tp=2),
    "fsdp-tp-tied": TrainConfig(dp=2, tp=2, tied=True),
    "ddp-tp": TrainConfig(dp=2, tp=2, data_parallel="ddp"),
}


def logical(model: nn.Module) -> dict[str, torch.Tensor]:
    return {
        name.removeprefix("module."): (
            value.full_tensor() if isinstance(value, DTensor) else value
        ).detach()
        for name, value in model.named_parameters()
    }


def generated_in_a_layout(config: TrainConfig) -> dict[str, torch.Tensor]:
    sizes = (config.dp, config.tp)
    mesh = init_device_mesh("cpu", sizes, mesh_dim_names=("dp", "tp"))
    # other parameters than the other side has, which must leave no trace
    model, _ = build(replace(config, seed=1 + torch.distributed.get_rank()), mesh)
    ttrace.generate_parameters(model, seed=5)
    return logical(model)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_layout_starts_like_one_process(layout: str, dtype: str, pool: WorkerPool) -> None:
    config = replace(LAYOUTS[layout], dtype=dtype)
    alone, _ = build(replace(config, dp=1, tp=1, data_parallel="fsdp"))
    ttrace.generate_parameters(alone, seed=5)
    expected = logical(alone)
    for found in pool.run(config.world_size, generated_in_a_layout, config):
        assert found.keys() == expected.keys()
        for name, value in expected.items():
            assert torch.equal(found[name], value), name


def uneven() -> nn.Module:
    return nn.Sequential(nn.Linear(5, 7), nn.LayerNorm(7), nn.Linear(7, 3))


def generated_uneven() -> tuple[dict[str, torch.Tensor], int]:
    model: Any = fully_shard(uneven(), mesh=init_device_mesh("cpu", (4,)))
    ttrace.generate_parameters(model)
    return logical(model), model[2].weight.to_local().numel()


def test_uneven_and_empty_shards_start_like_one_process(pool: WorkerPool) -> None:
    alone = uneven()
    ttrace.generate_parameters(alone)
    found = pool.run(4, generated_uneven)
    assert [held for _, held in found] == [7, 7, 7, 0]
    for parameters, _ in found:
        for name, value in logical(alone).items():
            assert torch.equal(parameters[name], value), name


def generated_on_an_uneven_mesh() -> list[torch.Tensor]:
    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("dp", "tp"))
    found = []
    for placements in ([Shard(0), Shard(0)], [Shard(1), Shard(0)], [Replicate(), Shard(1)]):
        linear: Any = nn.Linear(7, 5, bias=False)
        linear.weight = nn.Parameter(distribute_tensor(linear.weight, mesh, placements))
        ttrace.generate_parameters(linear)
        found.append(linear.weight.full_tensor().detach())
    return found


def test_meshes_of_two_axes_start_like_one_process(pool: WorkerPool) -> None:
    alone = nn.Linear(7, 5, bias=False)
    ttrace.generate_parameters(alone)
    for found in pool.run(4, generated_on_an_uneven_mesh):
        for whole in found:
            assert torch.equal(whole, alone.weight)


def refused_terms_of_a_sum() -> str:
    mesh = init_device_mesh("cpu", (2,))
    linear = nn.Linear(4, 4, bias=False)
    term = DTensor.from_local(torch.zeros(4, 4), mesh, [Partial()])
    linear.weight = nn.Parameter(term)
    try:
        ttrace.generate_parameters(linear)
    except UsageError as error:
        return str(error)
    return "was not refused"


def test_a_parameter_that_is_a_term_of_a_sum_is_refused(pool: WorkerPool) -> None:
    for message in pool.run(2, refused_terms_of_a_sum):
        assert ":param.weight: is a term of a sum" in message


def logical_scale() -> float:
    linear: Any = nn.Linear(4096, 64, bias=False)
    mesh = init_device_mesh("cpu", (4,))
    linear.weight = nn.Parameter(distribute_tensor(linear.weight, mesh, [Shard(1)]))
    ttrace.generate_parameters(linear)
    return linear.weight.to_local().std().item()


def test_scale_follows_the_logical_fan_in(pool: WorkerPool) -> None:
    for std in pool.run(4, logical_scale):
        assert std == pytest.approx(1 / math.sqrt(3 * 4096), rel=0.02)
