"""Where a training script meets TTrace: three lines, inert unless the run was started for tracing.

`ttrace run` says by environment variables that and how a run is traced.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ttrace.capture.tracer import OffTracer, Tracer
from ttrace.errors import UsageError

ENV_OUT = "TTRACE_OUT"  # folder of the trace; tracing is off without it
ENV_STEPS = "TTRACE_STEPS"  # how many steps to record, 1 by default
ENV_NOISE = "TTRACE_NOISE"  # seed of the rounding noise of a perturbed reference
ENV_SPLIT = "TTRACE_SPLIT"  # in how many rounded parts a linear layer adds its products
ENV_TAPS = "TTRACE_TAPS"  # 1: record every use of a tensor by itself, as isolated runs do
ENV_PLANS = "TTRACE_PLANS"  # folder of plans: overwrite every value with the reference's


def attach(model: Any, optimizer: Any = None) -> Tracer:
    """Watch a model and its optimizer. Call it after the model was parallelised and wrapped.

    `model` is a module, or the PipelineStages or Megatron model chunks that this rank holds. The
    optimizer is torch's, several of them, or the framework's own.
    """
    folder = os.environ.get(ENV_OUT)
    if not folder:
        return OffTracer()
    # Only a traced run pays for importing the frameworks' modules.
    from ttrace.adapters.registry import find_adapter
    from ttrace.capture.rounding import split
    from ttrace.capture.step import RecordingTracer

    if ways := _number(ENV_SPLIT):
        split(model, ways)
    optimizers = [] if optimizer is None else optimizer
    if not isinstance(optimizers, (list, tuple)):
        optimizers = [optimizers]
    return RecordingTracer(
        adapter=find_adapter(model),
        optimizers=optimizers,
        folder=Path(folder),
        steps=_number(ENV_STEPS) or 1,
        noise_seed=_number(ENV_NOISE),
        taps=bool(_number(ENV_TAPS)),
        plans=Path(os.environ[ENV_PLANS]) if os.environ.get(ENV_PLANS) else None,
    )


def _number(variable: str) -> int | None:
    text = os.environ.get(variable)
    if not text:
        return None
    if not text.isdecimal():
        raise UsageError(f"{variable} must be a whole number, found {text!r}")
    return int(text)
