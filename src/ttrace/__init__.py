"""TTrace finds silent bugs in distributed training.

One training step runs on a trusted reference and on the distributed candidate; every logical tensor
is rebuilt from the ranks' shards and compared with tolerances that are measured:

    capture -> align -> compare -> tolerance -> judge -> localize -> diagnose -> report

In a training script:

    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        ...forward, backward, optimizer.step()

Elsewhere:

    result = ttrace.diff("python train.py", "torchrun --nproc-per-node 4 train.py", out="traces")

Names are imported when they are first used, so that a training job loads what records and no more.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ttrace.analysis.check import check
    from ttrace.capture.annotate import Split, annotate
    from ttrace.capture.attach import attach
    from ttrace.capture.tracer import Tracer
    from ttrace.core.blame import Culprit
    from ttrace.core.ids import TensorId
    from ttrace.core.layout import Layout
    from ttrace.core.results import CheckResult, NotEquivalent, Outcome, TensorResult, Verdict
    from ttrace.core.whatif import WhatIf
    from ttrace.errors import (
        CannotCompare,
        CommandFailed,
        CorruptTrace,
        LayoutError,
        TraceError,
        TraceNotFound,
        TTraceError,
        UnsupportedTrace,
        UsageError,
        WorkerLost,
    )
    from ttrace.generate.parameters import dropout_mask, generate_parameters, generate_tensor
    from ttrace.lab.experiment import diff
    from ttrace.lab.run import Function
    from ttrace.lab.whatif import whatif
    from ttrace.trace.reader import Trace

__version__ = "0.1.0"
__all__ = [
    "CannotCompare",
    "CheckResult",
    "CommandFailed",
    "CorruptTrace",
    "Culprit",
    "Function",
    "Layout",
    "LayoutError",
    "NotEquivalent",
    "Outcome",
    "Split",
    "TTraceError",
    "TensorId",
    "TensorResult",
    "Trace",
    "TraceError",
    "TraceNotFound",
    "Tracer",
    "UnsupportedTrace",
    "UsageError",
    "Verdict",
    "WhatIf",
    "WorkerLost",
    "__version__",
    "annotate",
    "attach",
    "check",
    "diff",
    "dropout_mask",
    "generate_parameters",
    "generate_tensor",
    "whatif",
]

_HOMES = {
    "ttrace.analysis.check": ("check",),
    "ttrace.capture.annotate": ("Split", "annotate"),
    "ttrace.capture.attach": ("attach",),
    "ttrace.capture.tracer": ("Tracer",),
    "ttrace.core.blame": ("Culprit",),
    "ttrace.core.ids": ("TensorId",),
    "ttrace.core.layout": ("Layout",),
    "ttrace.core.results": ("CheckResult", "NotEquivalent", "Outcome", "TensorResult", "Verdict"),
    "ttrace.core.whatif": ("WhatIf",),
    "ttrace.errors": (
        *("CannotCompare", "CommandFailed", "CorruptTrace", "LayoutError", "TTraceError"),
        *("TraceError", "TraceNotFound", "UnsupportedTrace", "UsageError", "WorkerLost"),
    ),
    "ttrace.generate.parameters": ("dropout_mask", "generate_parameters", "generate_tensor"),
    "ttrace.lab.experiment": ("diff",),
    "ttrace.lab.run": ("Function",),
    "ttrace.lab.whatif": ("whatif",),
    "ttrace.trace.reader": ("Trace",),
}

if not TYPE_CHECKING:  # a type checker would believe that every name exists

    def __getattr__(name: str) -> object:
        for home, names in _HOMES.items():
            if name in names:
                globals()[name] = found = getattr(importlib.import_module(home), name)
                return found
        raise AttributeError(f"module 'ttrace' has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
