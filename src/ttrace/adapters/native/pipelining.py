"""The part of a model that one rank holds: all of it, or the stages of a pipeline.

Enters: what a script passes to `attach`. Leaves: the modules to watch, which of them stand at the
ends of the model, and the number of the microbatch that a stage works on. A schedule of
torch.distributed.pipelining first runs every stage once to learn shapes: that is a rehearsal.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.distributed.pipelining.stage import _PipelineStageBase

from ttrace.adapters.patching import patched
from ttrace.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class PipelinePart:
    """A module that takes the model's inputs if it is first, and gives its outputs if last."""

    module: nn.Module
    is_first: bool = True
    is_last: bool = True


class Pipeline:
    """The stages of this rank, and what it is doing with them."""

    def __init__(self, model: Any) -> None:
        parts = model if isinstance(model, Sequence) and model else [model]
        self.stages = [_stage(part) for part in parts]
        self._scheduled = any(isinstance(part, _PipelineStageBase) for part in parts)
        self.microbatch: int | None = None

    def is_rehearsal(self) -> bool:
        in_backward = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  (no public way to ask)
        return self._scheduled and self.microbatch is None and not in_backward

    @contextmanager
    def tracking(self) -> Iterator[None]:
        """While open, `microbatch` is that of the forward which a schedule runs."""
        if not self._scheduled:
            yield
            return

        def forward(original: Any, stage: Any, fwd_chunk_id: int, *args: Any, **kwargs: Any) -> Any:
            self.microbatch = fwd_chunk_id
            try:
                return original(stage, fwd_chunk_id, *args, **kwargs)
            finally:
                self.microbatch = None

        with patched(_PipelineStageBase, "forward_one_chunk", forward):
            yield


def _stage(part: Any) -> PipelinePart:
    if isinstance(part, _PipelineStageBase):
        return PipelinePart(module=part.submod, is_first=part.is_first, is_last=part.is_last)
    if isinstance(part, nn.Module):
        return PipelinePart(module=part)
    raise UsageError(
        "ttrace.attach needs the model: a torch.nn.Module, a PipelineStage, or a list of the "
        f"PipelineStages of this rank; found {type(part).__name__}"
    )
