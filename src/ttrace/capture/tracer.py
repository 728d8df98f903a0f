"""The tracer as a training script sees it, and the one of a run that is not traced."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Protocol

import torch


class Tracer(Protocol):
    """What `ttrace.attach` returns."""

    enabled: bool

    def step(self) -> AbstractContextManager[None]:
        """Context manager around one training step."""

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        """Say which tensor is the loss of this microbatch, where tracing finds another."""


class OffTracer:
    """The tracer of a run that was not started for tracing: no hook, no file, no cost."""

    enabled = False

    @contextmanager
    def step(self) -> Iterator[None]:
        yield

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        return value
