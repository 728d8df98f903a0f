"""The training steps of the sweep: an operator on a DTensor, and an optimizer under FSDP2."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import CPUOffloadPolicy, FSDPModule, fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import loss_parallel
from torch.nn.utils import clip_grad_norm_

import ttrace
from studies.sweep.operators import CASES, COLUMNS

LOSS_PARALLEL = "loss_parallel"
PLACEMENTS = {"shard 0": Shard(0), "shard 1": Shard(1), "replicate": Replicate()}


class _Operator(nn.Module):
    """One case, on a tensor that is placed before and whole afterwards."""

    def __init__(self, case: str, placement: str | None) -> None:
        super().__init__()
        self._case, self._placement = CASES[case], placement

    def forward(self, x: Tensor) -> Tensor:
        if self._placement is None:
            found = self._case(x, lambda constant: constant)
        else:
            mesh = init_device_mesh("cpu", (dist.get_world_size(),))
            placed = DTensor.from_local(x, mesh, [Replicate()], run_check=False)
            placed = placed.redistribute(placements=[PLACEMENTS.get(self._placement, Shard(1))])
            found = self._case(placed, lambda constant: _on(mesh, constant))
        return found.full_tensor() if isinstance(found, DTensor) else found


def _on(mesh: DeviceMesh, constant: Tensor) -> Tensor:
    return distribute_tensor(constant, mesh, [Replicate()])


def train_operator(case: str, rows: int, placement: str | None = None) -> None:
    """Linear, the case, and a loss in which every element of its result counts differently."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, COLUMNS), nn.Sigmoid(), _Operator(case, placement))
    inputs = torch.randn(rows, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    context = loss_parallel() if placement == LOSS_PARALLEL else nullcontext()
    with ttrace.attach(model, optimizer).step(), context:
        found = model(inputs)
        weights = torch.rand(found.shape, generator=torch.Generator().manual_seed(1)) + 0.5
        (found * weights).sum().backward()
        optimizer.step()


def train_sharded(make: str, options: tuple[tuple[str, Any], ...], way: str) -> None:
    """An MLP under FSDP2: an optimizer of torch by its name, or a way to shard."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 10, bias=make != "Muon"), nn.GELU())
    model.append(nn.Linear(10, 3, bias=make != "Muon"))
    rank, ranks = dist.get_rank(), dist.get_world_size()
    _WAYS[way](model, ranks)
    optimizer = getattr(torch.optim, make)(model.parameters(), **dict(options))
    tracer = ttrace.attach(model, optimizer)
    generator = torch.Generator().manual_seed(1)
    for _ in range(2):
        x, y = torch.randn(8, 6, generator=generator), torch.randn(8, 3, generator=generator)
        with tracer.step():
            loss = nn.functional.mse_loss(model(x.chunk(ranks)[rank]), y.chunk(ranks)[rank])
            loss.backward()
            if way in _NORMS:
                clip_grad_norm_(model.parameters(), 0.1, norm_type=_NORMS[way])
            optimizer.step()
            optimizer.zero_grad()


def _plain(model: nn.Module, ranks: int) -> None:
    fully_shard(model, mesh=init_device_mesh("cpu", (ranks,)))


def _each(model: nn.Module, ranks: int, **options: Any) -> None:
    mesh = init_device_mesh("cpu", (ranks,))
    for child in (*model, model) if isinstance(model, nn.Sequential) else (model,):
        if next(child.parameters(), None) is not None:
            fully_shard(child, mesh=mesh, **options)


def _kept(model: nn.Module, ranks: int) -> None:
    _each(model, ranks, reshard_after_forward=False)


def _offloaded(model: nn.Module, ranks: int) -> None:
    _each(model, ranks, offload_policy=CPUOffloadPolicy(pin_memory=False))


def _second_dim(model: nn.Module, ranks: int) -> None:
    def place(parameter: nn.Parameter) -> Shard:
        return Shard(parameter.ndim - 1)

    _each(model, ranks, shard_placement_fn=place)


def _replicas(model: nn.Module, ranks: int) -> None:
    mesh = init_device_mesh("cpu", (ranks, 1), mesh_dim_names=("replicate", "shard"))
    fully_shard(model, mesh=mesh)


def _summed(model: nn.Module, ranks: int) -> None:
    """Gradients are divided by hand: the factor of FSDP2 is set."""
    _plain(model, ranks)
    assert isinstance(model, FSDPModule)
    model.set_gradient_divide_factor(float(ranks))


_NORMS = {"norm 1": 1.0, "norm 2": 2.0, "norm 3": 3.0, "norm inf": float("inf")}
_WAYS: dict[str, Callable[[nn.Module, int], None]] = {
    "whole": _plain,
    "each": _each,
    "kept": _kept,
    "offloaded": _offloaded,
    "second dim": _second_dim,
    "replicas": _replicas,
    "divide factor": _summed,
    **dict.fromkeys(_NORMS, _plain),
}
WAYS = tuple(_WAYS)
