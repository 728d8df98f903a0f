"""Capture changes no number of a distributed run, whatever it clips."""

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.nn.utils import clip_grad_norm_

import ttrace
from ttrace.capture.settings import Settings
from ttrace.lab.functions import WorkerPool
from ttrace.trace.reader import Trace


def train(layout: str) -> list[list[float]]:
    """Two clipped steps; the norms and the parameters of this rank."""
    torch.manual_seed(0)
    model: nn.Module = nn.Sequential(nn.Linear(6, 9), nn.Tanh(), nn.Linear(9, 3))
    if layout == "ddp":
        model = DistributedDataParallel(model)
    else:
        sizes, names = ((2, 2), ("replica", "shard")) if layout == "hsdp" else ((4,), ("dp",))
        mesh = init_device_mesh("cpu", sizes, mesh_dim_names=names)
        fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
    tracer = ttrace.attach(model, optimizer)
    numbers: list[Tensor] = []
    for x in torch.randn(2, 4, 6).split(1):
        with tracer.step():
            model(x[0, dist.get_rank() :]).square().mean().backward()
            numbers.append(local(clip_grad_norm_(model.parameters(), 0.01)))
            optimizer.step()
            optimizer.zero_grad()
        numbers += [local(parameter) for parameter in model.parameters()]
    return [number.flatten().tolist() for number in numbers]


def local(tensor: Tensor) -> Tensor:
    return (tensor.to_local() if isinstance(tensor, DTensor) else tensor).detach().clone()


@pytest.mark.parametrize("layout", ["ddp", "fsdp", "hsdp"])
def test_numbers_are_bitwise_the_same_with_capture_on_and_off(
    layout: str, pool: WorkerPool, tmp_path: Path
) -> None:
    untraced = pool.run(4, train, layout)
    environment = Settings(folder=tmp_path / "trace", steps=2).to_environment()
    assert pool.run(4, train, layout, environment=environment) == untraced
    norms = [id_ for id_ in Trace.open(tmp_path / "trace").by_id() if id_.kind.value == "grad_norm"]
    assert len(norms) == 2
