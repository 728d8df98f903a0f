"""Tracing a tiny model inside a test, and reading back what was recorded."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from unittest import mock

import torch
from torch import nn
from torch.optim import Optimizer

import ttrace
from ttrace.capture.settings import Settings
from ttrace.core.ids import TensorId
from ttrace.core.record import Record, Summary
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader


@dataclass(frozen=True)
class Recorded:
    """The trace of a run of one process; ids are given without their `step0/`."""

    trace: Trace

    @property
    def summary(self) -> Summary:
        summary = self.trace.ranks[0].summary
        assert summary is not None, "the trace has no end"
        return summary

    @property
    def ids(self) -> set[str]:
        return {str(id_).removeprefix("step0/") for id_ in self.trace.by_id()}

    def records(self, name: str) -> list[Record]:
        text = name if name.startswith("step") else f"step0/{name}"
        return list(self.trace.by_id().get(TensorId.parse(text), ()))

    def record(self, name: str, *, microbatch: int = 0, recompute: bool = False) -> Record:
        (record,) = (
            record
            for record in self.records(name)
            if record.microbatch == microbatch and record.recompute == recompute
        )
        return record

    def value(self, name: str, *, microbatch: int = 0, recompute: bool = False) -> torch.Tensor:
        record = self.record(name, microbatch=microbatch, recompute=recompute)
        with SpanReader(self.trace.path) as spans:
            return spans.load(record)


class Calling(nn.Module):
    """A model whose forward is given as a function of itself."""

    def __init__(self, forward: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self._body = forward
        for name, child in children.items():
            self.add_module(name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self._body(self, *args, **kwargs)

    if TYPE_CHECKING:  # torch says Tensor | Module, of which neither has what children have

        def __getattr__(self, name: str) -> Any: ...


def attach(
    folder: Path,
    model: Any,
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    steps: int = 1,
    noise_seed: int | None = None,
    blocks: Path | None = None,
) -> ttrace.Tracer:
    """A tracer that is on, whatever the environment of the tests says."""
    settings = Settings(folder=folder, steps=steps, noise_seed=noise_seed, blocks=blocks)
    with mock.patch.dict(os.environ, settings.to_environment()):
        return ttrace.attach(model, optimizer)


def read(folder: Path) -> Recorded:
    return Recorded(Trace.open(folder))


def record(
    folder: Path,
    model: Any,
    step: Callable[[], object],
    optimizer: Optimizer | Sequence[Optimizer] | None = None,
    *,
    steps: int = 1,
    noise_seed: int | None = None,
    blocks: Path | None = None,
) -> Recorded:
    """What `steps` calls of `step` leave in a trace."""
    tracer = attach(folder, model, optimizer, steps=steps, noise_seed=noise_seed, blocks=blocks)
    for _ in range(steps):
        with tracer.step():
            step()
    return read(folder)


def hook_count(model: nn.Module, *optimizers: Optimizer) -> int:
    """All hooks on a model's modules and parameters and on its optimizers."""
    kinds = ("_forward_pre_hooks", "_forward_hooks", "_backward_pre_hooks", "_backward_hooks")
    hooks = [getattr(module, kind) for module in model.modules() for kind in kinds]
    hooks += [parameter._backward_hooks or {} for parameter in model.parameters()]
    hooks += [opt._optimizer_step_pre_hooks for opt in optimizers]
    hooks += [opt._optimizer_step_post_hooks for opt in optimizers]
    return sum(map(len, hooks))
