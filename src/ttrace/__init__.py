"""TTrace finds silent bugs in distributed training.

One training step runs on a trusted reference and on the distributed candidate; every logical tensor
is rebuilt from the ranks' shards and compared with tolerances that are measured:

    capture -> align -> tolerance -> compare -> localize -> diagnose -> report

In a training script:

    tracer = ttrace.attach(model, optimizer)
    with tracer.step():
        ...forward, backward, optimizer.step()
"""

from ttrace.analysis.check import check
from ttrace.capture.annotate import Split, annotate
from ttrace.capture.attach import attach
from ttrace.capture.tracer import Tracer
from ttrace.core.layout import Layout
from ttrace.core.results import CheckResult
from ttrace.errors import TTraceError
from ttrace.generate.parameters import dropout_mask, generate_parameters, generate_tensor

__version__ = "0.1.0"
__all__ = [
    "CheckResult",
    "Layout",
    "Split",
    "TTraceError",
    "Tracer",
    "__version__",
    "annotate",
    "attach",
    "check",
    "dropout_mask",
    "generate_parameters",
    "generate_tensor",
]
