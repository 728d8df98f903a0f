"""What is done with a tensor that enters or leaves a module, and with its gradient.

    Watching(context)              record the value, and the gradient when it arrives
    Watching(context, noise)       move both by rounding noise, and record what goes on
    Tapping(context)               record both, and hand on a copy
    Tapping(context, overwriter)   record both, and hand on the reference's values

Here stands what both share: watching.py and tapping.py are the two ways.
"""

from __future__ import annotations

from typing import Protocol

import torch

from ttrace.adapters.base import BoundarySpec
from ttrace.capture.calls import Call
from ttrace.capture.context import StepContext
from ttrace.core.ids import Kind

GRADIENT_OF = {Kind.INPUT: Kind.GRAD_INPUT, Kind.OUTPUT: Kind.GRAD_OUTPUT}


class Boundary(Protocol):
    """One way to treat the tensors at the boundaries of modules."""

    changes_inputs: bool
    changes_outputs: bool

    def meet(self, call: Call, kind: Kind, slot: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that goes on; another one only where the boundary changes such tensors."""

    def end(self) -> None:
        """Forget the step."""


def with_graph_of(grad: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
    """These values in place of a gradient, which may be differentiated itself, as a penalty is."""
    if values is grad or not (torch.is_grad_enabled() and grad.requires_grad):
        return values
    return values + (grad - grad.detach())


def record_at(
    context: StepContext, call: Call, kind: Kind, boundary: BoundarySpec, tensor: torch.Tensor
) -> None:
    context.recorder.value(
        context.id_in(call, kind, boundary.slot),
        tensor,
        microbatch=call.microbatch,
        recompute=call.recompute,
        boundary=boundary,
        is_whole=kind is Kind.INPUT and call.is_outermost,  # samples are recognised by it
    )
