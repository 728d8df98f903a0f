"""Where a training script meets TTrace: three lines, inert unless the run is traced."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from ttrace.capture.settings import Settings
from ttrace.capture.tracer import OffTracer, Tracer


def attach(model: Any, optimizer: Any = None) -> Tracer:
    """Watch a model and its optimizer. Call it after the model was parallelised and wrapped.

    `model` is a module, or the PipelineStages or Megatron model chunks that this rank holds. The
    optimizer is torch's, several of them, or the framework's own. Several models are attached
    together, in a list or by name: `attach({"generator": g, "critic": c}, [optimizer_g,
    optimizer_c])`.
    """
    settings = Settings.from_environment(os.environ)
    if settings is None:
        return OffTracer()
    # Only a traced run pays for importing the frameworks' modules.
    from ttrace.adapters.registry import find_adapter
    from ttrace.capture.rounding import split_linears
    from ttrace.capture.step import RecordingTracer

    if settings.split > 1:
        split_linears(model.values() if isinstance(model, Mapping) else model, settings.split)
    optimizers = [] if optimizer is None else optimizer
    if not isinstance(optimizers, (list, tuple)):
        optimizers = [optimizers]
    return RecordingTracer(
        adapter=find_adapter(model),
        optimizers=optimizers,
        settings=settings,
    )
