"""A small training run whose fingerprints are recorded, on a GPU that is none or one by one."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch
from torch import nn

import ttrace
from tests.support.capturing import Recorded, read
from tests.support.fake_arena import FakeArenaDevice, take_for_gpu
from ttrace.capture.settings import Settings
from ttrace.trace.fingerprint import NAME

SUMS = 16  # so that a weight of this model is fingerprinted, and its bias is not
BIG_NORM = 1e9  # to which nothing is clipped


def model_of_two() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 32), nn.Linear(32, 8))


def trained(
    folder: Path,
    *,
    model: nn.Module | None = None,
    device: FakeArenaDevice | None = None,
    steps: int = 2,
    lr: float = 0.1,
    norm: float = BIG_NORM,
    optimizer: type[Any] = torch.optim.Adam,
    inputs: Callable[[], torch.Tensor] = lambda: torch.ones(3, 16),
    between: Callable[[int], None] = lambda _: None,
) -> Recorded:
    """The trace of it; by sheets where there is a device. `between` is called after each step."""
    model = model_of_two() if model is None else model
    updating = optimizer(model.parameters(), lr=lr)
    settings = Settings(folder=folder, steps=steps, payload=NAME, sums=SUMS)
    with pytest.MonkeyPatch.context() as patch:
        if device is not None:
            take_for_gpu(patch, device)
        with mock.patch.dict(os.environ, settings.to_environment()):
            tracer = ttrace.attach(model, updating)
        for number in range(steps):
            with tracer.step():
                model(inputs()).sum().backward()
                if norm:
                    nn.utils.clip_grad_norm_(model.parameters(), norm)
                updating.step()
                updating.zero_grad()
            between(number)
    return read(folder)
