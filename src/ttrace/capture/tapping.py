"""Tapping: every use of a tensor by itself, as isolated runs need it.

A tap is a private autograd function between producer and consumer. Each segment between two taps
that overwrite starts from correct values, so what is wrong at its end was made wrong inside it.
Taps regroup the sums of gradients, so a reference that is to be compared with an isolated run is
recorded with taps as well.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import BoundarySpec
from ttrace.capture.annotate import boundary_of
from ttrace.capture.boundary import GRADIENT_OF, record_at, with_graph_of
from ttrace.capture.calls import Call
from ttrace.capture.context import StepContext
from ttrace.capture.guard import Guard, Hook, entry
from ttrace.capture.overwrite import Overwriter
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout

Change = Callable[[torch.Tensor], torch.Tensor]
_Gradients = tuple[torch.Tensor | None, None, None, None]


class Tapping:
    """Separates every use of a tensor by a tap, and overwrites what passes where it is told to."""

    changes_inputs = True
    changes_outputs = True

    def __init__(
        self,
        context: StepContext,
        overwriter: Overwriter | None = None,
        modules: Set[str] | None = None,
    ) -> None:
        self._context = context
        self._overwriter = overwriter
        self._modules = modules  # at whose boundaries there are taps; None: at all

    def meet(self, call: Call, kind: Kind, slot: str, tensor: torch.Tensor) -> torch.Tensor:
        adapter = self._context.adapter
        boundary = boundary_of(adapter, call.module, kind, slot, tensor)
        back = boundary_of(adapter, call.module, GRADIENT_OF[kind], slot, tensor)
        if boundary is None or (self._modules is not None and call.path not in self._modules):
            return tensor
        if isinstance(tensor, nn.Parameter):
            # A consumer may need the object itself; its values are the reference's already.
            record_at(self._context, call, kind, boundary, tensor)
            return tensor
        if not tensor.is_floating_point():
            return self._without_gradient(call, kind, boundary, tensor)
        forward = self._forward(call, kind, boundary)
        backward: Callable[[torch.Tensor], torch.Tensor | None] = _unchanged
        if back is not None:
            value_id = self._context.id_in(call, kind, boundary.slot)
            backward = self._backward(call, value_id, GRADIENT_OF[kind], back, tensor)
        with torch.set_grad_enabled(tensor.requires_grad):
            tapped: torch.Tensor = _Tap.apply(tensor, forward, backward, self._context.guard)
        adapter.inherit(tapped, tensor)
        return tapped

    def end(self) -> None:
        return

    def _without_gradient(
        self, call: Call, kind: Kind, boundary: BoundarySpec, tensor: torch.Tensor
    ) -> torch.Tensor:
        """Masks, indices, what a router chose: the object itself unless its values are others."""
        record_at(self._context, call, kind, boundary, tensor)
        id_ = self._context.id_in(call, kind, boundary.slot)
        replaced = self._reference(id_, call.microbatch, tensor, id_, None, boundary)
        if replaced is None or tensor.requires_grad:
            return tensor
        own, given = (self._context.adapter.to_local(each)[0] for each in (tensor, replaced))
        if torch.equal(own, given) or (kind is Kind.INPUT and not _lies_within(given, own)):
            return tensor
        return replaced

    def _forward(self, call: Call, kind: Kind, boundary: BoundarySpec) -> Change:
        id_ = self._context.id_in(call, kind, boundary.slot)
        adapter = self._context.adapter

        def forward(tensor: torch.Tensor) -> torch.Tensor:
            record_at(self._context, call, kind, boundary, tensor)
            replaced = self._reference(id_, call.microbatch, tensor, id_, None, boundary)
            if replaced is not None:
                return replaced
            return adapter.wrap_like(adapter.to_local(tensor)[0].clone(), like=tensor)

        return forward

    def _backward(
        self,
        call: Call,
        value_id: TensorId,
        kind: Kind,
        boundary: BoundarySpec,
        tensor: torch.Tensor,
    ) -> Hook:
        """What is called with the gradient; it returns None where that goes on as it is."""
        context, arrivals = self._context, self._context.arrivals
        id_, layout = context.id_in(call, kind, boundary.slot), boundary.layout
        gradient = (id_, call.microbatch)
        if tensor.requires_grad and not arrivals.is_known(gradient):
            arrivals.expect(gradient)

        def backward(grad: torch.Tensor) -> torch.Tensor:
            context.calls.arrive(call)
            by = context.id_arrived(gradient)
            context.recorder.value(by, grad, microbatch=call.microbatch, boundary=boundary)
            replaced = self._reference(by, call.microbatch, grad, value_id, layout, boundary)
            return grad if replaced is None else replaced

        def arrived(grad: torch.Tensor) -> torch.Tensor | None:
            changed = context.recording(id_, backward, grad)
            return None if changed is None else with_graph_of(grad, changed)

        return Hook(context.guard, id_, arrived)

    def _reference(
        self,
        id_: TensorId,
        microbatch: int,
        tensor: torch.Tensor,
        position_id: TensorId,
        inner: Layout | None,
        boundary: BoundarySpec,
    ) -> torch.Tensor | None:
        """The values that overwrite this tensor; None where it is not overwritten."""
        if self._overwriter is None:
            return None
        if boundary.rows:
            return self._overwriter.sent(id_, microbatch, tensor, position_id, boundary.rows)
        return self._overwriter.value(id_, microbatch, tensor, position_id, inner, boundary.dims)


def _unchanged_gradient(_: Any, *grads: torch.Tensor | None) -> _Gradients:
    return grads[0], None, None, None


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, tensor: torch.Tensor, forward: Change, backward: Any, guard: Guard
    ) -> torch.Tensor:
        ctx.backward_change, ctx.guard = backward, guard
        ctx.set_materialize_grads(False)
        return forward(tensor)

    @staticmethod
    @entry("the gradient of a tap", _unchanged_gradient)
    def backward(ctx: Any, *grads: torch.Tensor | None) -> _Gradients:
        grad = grads[0]
        changed = None if grad is None else ctx.backward_change(grad)
        return (grad if changed is None else changed), None, None, None


def _lies_within(given: torch.Tensor, own: torch.Tensor) -> bool:
    """Whether whoever follows these indices stays where its own ones lead: ranks hold parts."""
    if given.numel() == 0 or given.dtype == torch.bool:
        return True
    return bool(given.max() <= own.max() and given.min() >= own.min())


def _unchanged(_: torch.Tensor) -> None:
    return
