"""What is done with a tensor that enters or leaves a module, and with its gradient.

    Watching(context)              record the value, and the gradient when it arrives
    Watching(context, noise)       move both by rounding noise, and record what goes on
    Tapping(context)               record both, and hand on a copy
    Tapping(context, overwriter)   record both, and hand on the reference's values

A tap is a private autograd function between producer and consumer. Each segment between two taps
that overwrite starts from correct values, so what is wrong at its end was made wrong inside it.
Taps regroup the sums of gradients, so a reference that is to be compared with an isolated run is
recorded with taps as well.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ttrace.adapters.base import BoundarySpec
from ttrace.capture.annotate import boundary_of
from ttrace.capture.calls import Call
from ttrace.capture.context import StepContext
from ttrace.capture.noise import Noise
from ttrace.capture.objects import ObjectMemory
from ttrace.capture.overwrite import Overwriter
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout

Change = Callable[[torch.Tensor], torch.Tensor]

_GRADIENT = {Kind.INPUT: Kind.GRAD_INPUT, Kind.OUTPUT: Kind.GRAD_OUTPUT}


class Boundary(Protocol):
    """One way to treat the tensors at the boundaries of modules."""

    changes_inputs: bool
    changes_outputs: bool

    def meet(self, call: Call, kind: Kind, slot: str, tensor: torch.Tensor) -> torch.Tensor:
        """The tensor that goes on; another one only where the boundary changes such tensors."""

    def end(self) -> None:
        """Forget the step."""


class Watching:
    """Records values as they pass, and gradients by a tensor hook on each.

    Never by full backward hooks, which break programs that work in place.
    """

    changes_inputs = False

    def __init__(self, context: StepContext, noise: Noise | None = None) -> None:
        self._context = context
        self._noise = noise
        self.changes_outputs = noise is not None
        self._watched: ObjectMemory[tuple[TensorId, int]] = ObjectMemory()
        self._noisy: ObjectMemory[TensorId] = ObjectMemory()
        self._repeated: set[tuple[TensorId, int]] = set()
        self._handles: dict[tuple[TensorId, int], list[RemovableHandle]] = {}

    def meet(self, call: Call, kind: Kind, slot: str, tensor: torch.Tensor) -> torch.Tensor:
        if kind is Kind.OUTPUT and self._noise is not None:
            tensor = self._make_noisy(self._noise, call, slot, tensor)
        context = self._context
        boundary = boundary_of(context.adapter, call.module, kind, slot, tensor)
        if boundary is None:
            return tensor
        _record(context, call, kind, boundary, tensor)
        backward = boundary_of(context.adapter, call.module, _GRADIENT[kind], slot, tensor)
        if _expects_gradient(tensor) and backward is not None:
            self._watch(call, _GRADIENT[kind], backward, tensor)
        return tensor

    def end(self) -> None:
        for gradient in list(self._handles):
            self._forget(gradient)  # a leaf may live on and be used in the next step
        self._watched.clear()
        self._noisy.clear()
        self._repeated.clear()

    def _is_used_again(
        self, tensor: torch.Tensor, watched_as: tuple[TensorId, int], call: Call
    ) -> bool:
        """Whether it is a buffer that a pipeline stage receives other microbatches into."""
        is_other = watched_as[1] != call.microbatch
        return is_other and tensor.is_leaf and self._context.arrivals.came(watched_as)

    def _forget(self, gradient: tuple[TensorId, int]) -> None:
        for handle in self._handles.pop(gradient, ()):
            handle.remove()

    def _make_noisy(
        self, noise: Noise, call: Call, slot: str, tensor: torch.Tensor
    ) -> torch.Tensor:
        if self._noisy.find(tensor) is not None:
            return tensor  # a child returned it: noisy already
        id_ = self._context.id_in(call, Kind.OUTPUT, slot)
        with torch.set_grad_enabled(tensor.requires_grad):
            noisy = noise.on(tensor, f"{id_}@{call.microbatch}")
        self._noisy.keep(noisy, id_)
        return noisy

    def _watch(self, call: Call, kind: Kind, boundary: BoundarySpec, tensor: torch.Tensor) -> None:
        """Record the gradient of this tensor, over all its uses, when backward reaches it."""
        context, arrivals = self._context, self._context.arrivals
        id_ = context.id_in(call, kind, boundary.slot)
        gradient = (id_, call.microbatch)
        is_known = arrivals.is_known(gradient)
        if is_known and (arrivals.came(gradient) or not call.recompute):
            return
        watched_as = self._watched.find(tensor)
        if watched_as is not None and self._is_used_again(tensor, watched_as, call):
            self._forget(watched_as)
            watched_as = None
        if watched_as is not None:
            if not is_known:
                arrivals.settle(gradient)
                context.recorder.mention(
                    id_, tensor, microbatch=call.microbatch, same_as=watched_as[0]
                )
            return
        self._watched.keep(tensor, gradient)
        if is_known:
            # The gradient flows through the original, through the repetition, or through both.
            self._repeated.add(gradient)
        else:
            arrivals.expect(gradient)

        def arrived(grad: torch.Tensor) -> torch.Tensor | None:
            return context.guarded(str(id_), lambda: self._arrived(id_, call, boundary, grad))

        self._handles.setdefault(gradient, []).append(tensor.register_hook(arrived))

    def _arrived(
        self, id_: TensorId, call: Call, boundary: BoundarySpec, grad: torch.Tensor
    ) -> torch.Tensor | None:
        """The gradient that goes on instead; None leaves it as it is."""
        context, gradient = self._context, (id_, call.microbatch)
        context.calls.arrive(call)
        arrivals, number = context.arrivals, context.calls.passes
        if arrivals.came(gradient) and (
            gradient in self._repeated or context.adapter.is_weight_pass()
        ):
            return None
        if arrivals.came_by(gradient, number):
            raise RuntimeError("its gradient arrived twice; only the first is kept")
        id_ = replace(id_, turn=arrivals.arrive(gradient, number))
        noisy = None
        if self._noise is not None:
            noisy = self._noise.on(grad, f"{id_}@{call.microbatch}")
        value = grad if noisy is None else noisy
        context.recorder.value(id_, value, microbatch=call.microbatch, boundary=boundary)
        return noisy


class Tapping:
    """Separates every use of a tensor by a tap, and overwrites what passes where it is told to."""

    changes_inputs = True
    changes_outputs = True

    def __init__(self, context: StepContext, overwriter: Overwriter | None = None) -> None:
        self._context = context
        self._overwriter = overwriter

    def meet(self, call: Call, kind: Kind, slot: str, tensor: torch.Tensor) -> torch.Tensor:
        adapter = self._context.adapter
        boundary = boundary_of(adapter, call.module, kind, slot, tensor)
        back = boundary_of(adapter, call.module, _GRADIENT[kind], slot, tensor)
        if boundary is None:
            return tensor
        if isinstance(tensor, nn.Parameter):
            _record(self._context, call, kind, boundary, tensor)
            return tensor
        forward = self._forward(call, kind, boundary)
        if not tensor.is_floating_point():
            # What a module chose (experts, say) is its output as any other.
            passed = forward(tensor)
            return passed if kind is Kind.OUTPUT else tensor
        backward: Change = _same
        if back is not None:
            value_id = self._context.id_in(call, kind, boundary.slot)
            backward = self._backward(call, value_id, _GRADIENT[kind], back, tensor)
        with torch.set_grad_enabled(tensor.requires_grad):
            tapped: torch.Tensor = _Tap.apply(tensor, forward, backward)
        adapter.inherit(tapped, tensor)
        return tapped

    def end(self) -> None:
        return

    def _forward(self, call: Call, kind: Kind, boundary: BoundarySpec) -> Change:
        id_ = self._context.id_in(call, kind, boundary.slot)
        adapter = self._context.adapter

        def forward(tensor: torch.Tensor) -> torch.Tensor:
            _record(self._context, call, kind, boundary, tensor)
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
    ) -> Change:
        context, arrivals = self._context, self._context.arrivals
        id_, layout = context.id_in(call, kind, boundary.slot), boundary.layout
        gradient = (id_, call.microbatch)
        if tensor.requires_grad and not arrivals.is_known(gradient):
            arrivals.expect(gradient)

        def backward(grad: torch.Tensor) -> torch.Tensor:
            context.calls.arrive(call)
            by = replace(id_, turn=arrivals.arrive(gradient, context.calls.passes))
            context.recorder.value(by, grad, microbatch=call.microbatch, boundary=boundary)
            replaced = self._reference(by, call.microbatch, grad, value_id, layout, boundary)
            return grad if replaced is None else replaced

        def guarded(grad: torch.Tensor) -> torch.Tensor:
            changed = context.guarded(str(id_), lambda: backward(grad))
            return grad if changed is None else changed

        return guarded

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


class _Tap(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tensor: torch.Tensor, forward: Change, backward: Change) -> torch.Tensor:
        ctx.backward_change = backward
        ctx.set_materialize_grads(False)
        return forward(tensor)

    @staticmethod
    def backward(ctx: Any, *grads: torch.Tensor | None) -> tuple[torch.Tensor | None, None, None]:
        grad = grads[0]
        return (None if grad is None else ctx.backward_change(grad)), None, None


def _same(grad: torch.Tensor) -> torch.Tensor:
    return grad


def _record(
    context: StepContext, call: Call, kind: Kind, boundary: BoundarySpec, tensor: torch.Tensor
) -> None:
    context.recorder.value(
        context.id_in(call, kind, boundary.slot),
        tensor,
        microbatch=call.microbatch,
        recompute=call.recompute,
        boundary=boundary,
    )


def _expects_gradient(tensor: torch.Tensor) -> bool:
    """Whether a gradient of this tensor will arrive that is not recorded as a parameter's.

    A view made without autograd says that it requires a gradient when its base does, but gets none.
    """
    base = tensor._base  # noqa: SLF001  (no public way to ask)
    detached_view = tensor.is_leaf and base is not None and base.requires_grad
    return tensor.requires_grad and not detached_view and not isinstance(tensor, nn.Parameter)
