"""Watched runs of a small model on gloo ranks, clean or with one fault on one rank."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel

import ttrace
from ttrace.capture.settings import WatchSettings
from ttrace.core.drift import WatchedRun
from ttrace.lab.functions import WorkerPool
from ttrace.trace.watch_file import read_watched

Fault = Callable[[int, nn.Module], None]  # step, model


def watched(
    pool: WorkerPool, folder: Path, ranks: int, train: Callable[..., Any], *args: Any, **how: Any
) -> WatchedRun:
    """What the run told; `how` are settings of watching."""
    environment = WatchSettings(folder=folder, **how).to_environment()
    pool.run(ranks, train, *args, environment=environment)
    found = read_watched(folder)
    assert found is not None
    return found


def small(*, norm: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    middle = nn.BatchNorm1d(6) if norm else nn.Tanh()
    return nn.Sequential(nn.Linear(4, 6), middle, nn.Linear(6, 3))


def batch(step: int, size: int = 4) -> Tensor:
    """Other samples on each rank."""
    made = torch.Generator().manual_seed(1000 * step + dist.get_rank())
    return torch.randn(size, 4, generator=made)


def ddp(model: nn.Module, **how: Any) -> DistributedDataParallel:
    return DistributedDataParallel(model, **how)


def loop(
    model: nn.Module,
    steps: int,
    *,
    before_update: Fault | None = None,
    after_update: Fault | None = None,
) -> list[list[float]]:
    """Plain steps, with something wrong before or after the update; the parameters at the end."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    tracer = ttrace.attach(model, optimizer)
    for step in range(steps):
        with tracer.step():
            model(batch(step)).square().mean().backward()
            if before_update is not None:
                before_update(step, model)
            optimizer.step()
            if after_update is not None:
                after_update(step, model)
            optimizer.zero_grad()
    return [local(parameter).flatten().tolist() for parameter in model.parameters()]


def local(parameter: Tensor) -> Tensor:
    return (parameter.to_local() if isinstance(parameter, DTensor) else parameter).detach()


def add_ulp(tensor: Tensor) -> None:
    """To one element."""
    with torch.no_grad():
        flat = tensor.view(-1)
        flat[-1] = torch.nextafter(flat[-1], torch.tensor(torch.inf, dtype=tensor.dtype))
