"""The part of a model that one rank holds: all of it, or the stages of a pipeline.

Enters: what a script passes to `attach`. Leaves: the modules to watch, what each is called where
they are several models, which of them stand at the ends of the model, and the number of the
microbatch that a stage works on. A schedule of torch.distributed.pipelining first runs every stage
once to learn shapes: that is a rehearsal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining import stage as stage_module
from torch.distributed.pipelining.stage import _PipelineStageBase

from ttrace.adapters.base import AroundBackward
from ttrace.adapters.patching import patched
from ttrace.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePart:
    """A module that takes the model's inputs if it is first, and gives its outputs if last.

    `name` is the path of a model among several; a model alone, and all of its stages, have none.
    """

    module: nn.Module
    name: str = ""
    is_first: bool = True
    is_last: bool = True


class Pipeline:
    """The stages of this rank, and what it is doing with them."""

    def __init__(self, model: Any) -> None:
        named = _named(model)
        parts = [part for _, part in named]
        self.stages = [_stage(part, name) for name, part in named]
        self._scheduled = any(isinstance(part, _PipelineStageBase) for part in parts)
        self.microbatch: int | None = None
        self.backward_microbatch: int | None = None
        self.is_weight_pass = False
        # Of each stage: microbatches of earlier runs of its schedule in this step, and of this one.
        self._before: Counter[int] = Counter()
        self._now: Counter[int] = Counter()

    def is_rehearsal(self) -> bool:
        if not self._scheduled or self.microbatch is not None:
            return False
        return torch._C._current_graph_task_id() < 0  # noqa: SLF001  (no public way to ask)

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """While open, `microbatch` is that of the forward which a schedule runs."""
        if not self._scheduled:
            yield
            return

        self._before.clear()
        self._now.clear()
        with (
            patched(_PipelineStageBase, "clear_runtime_states", self._run_again),
            patched(_PipelineStageBase, "forward_one_chunk", self._forward),
            patched(_PipelineStageBase, "backward_one_chunk", self._backward),
            patched(_PipelineStageBase, "backward_weight_one_chunk", self._backward_weights),
        ):
            yield

    @contextmanager
    def watch_backward(self, around: AroundBackward) -> Iterator[None]:
        """While open, holds `around(losses)` during the first part of a backward that is split."""

        def inputs(original: Any, starts: Any, output_grads: Any, *args: Any, **kwargs: Any) -> Any:
            with around(() if output_grads is not None else tuple(starts)):
                return original(starts, output_grads, *args, **kwargs)

        with patched(stage_module, "stage_backward_input", inputs):
            yield

    def _run_again(self, original: Any, stage: Any) -> Any:
        """A schedule begins; one that ran before it in this step has used its numbers up."""
        self._before[id(stage)] += self._now.pop(id(stage), 0)
        return original(stage)

    def _forward(self, original: Any, stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
        self._now[id(stage)] = max(self._now[id(stage)], chunk + 1)
        self.microbatch = self._before[id(stage)] + chunk
        try:
            return original(stage, chunk, *args, **kwargs)
        finally:
            self.microbatch = None

    def _backward(self, original: Any, stage: Any, chunk: int, *args: Any, **kwargs: Any) -> Any:
        self.backward_microbatch = self._before[id(stage)] + chunk
        try:
            return original(stage, chunk, *args, **kwargs)
        finally:
            self.backward_microbatch = None

    def _backward_weights(
        self, original: Any, stage: Any, chunk: int, *args: Any, **kwargs: Any
    ) -> Any:
        # The first stage has nothing to do for its inputs: its one pass is this.
        self.is_weight_pass = not stage.is_first
        try:
            return self._backward(original, stage, chunk, *args, **kwargs)
        finally:
            self.is_weight_pass = False


def _named(model: Any) -> list[tuple[str, Any]]:
    """Every part with its name: models in a list go by their index."""
    if isinstance(model, Mapping) and model:
        return [(str(name), part) for name, part in model.items()]
    if not isinstance(model, Sequence) or not model:
        return [("", model)]
    are_models = len(model) > 1 and all(isinstance(part, nn.Module) for part in model)
    return [(str(index) if are_models else "", part) for index, part in enumerate(model)]


def _stage(part: Any, name: str) -> PipelinePart:
    if isinstance(part, _PipelineStageBase):
        return PipelinePart(module=part.submod, is_first=part.is_first, is_last=part.is_last)
    if isinstance(part, nn.Module):
        return PipelinePart(module=part, name=name)
    raise UsageError(
        "ttrace.attach needs the model: a torch.nn.Module, several in a list or by name in a dict, "
        "a PipelineStage, or a list of the PipelineStages of this rank; found "
        f"{type(part).__name__}"
    )
