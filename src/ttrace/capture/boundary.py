"""What is done with a tensor that enters or leaves a module, and with its gradient.

    Watching(context)              record the value, and the gradient when it arrives
    Watching(context, noise)       move both by rounding noise, and record what goes on
    Tapping(context)               record both, and hand on a copy
    Tapping(context, overwriter)   record both, and hand on the reference's values

Isolated runs need every use of a tensor by itself. A tap is a private autograd function between
producer and consumer. Each segment between two taps that overwrite starts from correct values, so
what is wrong at its end was made wrong inside it. Taps regroup the sums of gradients, so a
reference that is to be compared with an isolated run is recorded with taps as well.
"""

from __future__ import annotations

from collections.abc import Callable, Set
from typing import Any, Protocol

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ttrace.adapters.base import BoundarySpec
from ttrace.capture.annotate import boundary_of
from ttrace.capture.calls import Call
from ttrace.capture.context import Gradient, StepContext
from ttrace.capture.guard import Guard, Hook, entry
from ttrace.capture.noise import Noise
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.repeats import ObjectMemory
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout

GRADIENT_OF = {Kind.INPUT: Kind.GRAD_INPUT, Kind.OUTPUT: Kind.GRAD_OUTPUT}
Change = Callable[[torch.Tensor], torch.Tensor]
_Gradients = tuple[torch.Tensor | None, None, None, None]


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


class Watching:
    """Records values as they pass, and gradients by a tensor hook on each.

    Never by full backward hooks, which break programs that work in place.
    """

    changes_inputs = False

    def __init__(self, context: StepContext, noise: Noise | None = None) -> None:
        self._context = context
        self._noise = noise
        self.changes_outputs = noise is not None
        self._watched: ObjectMemory[Gradient] = ObjectMemory()
        self._noisy: ObjectMemory[TensorId] = ObjectMemory()
        self._repeated: set[Gradient] = set()
        self._handles: dict[Gradient, list[RemovableHandle]] = {}

    def meet(self, call: Call, kind: Kind, slot: str, tensor: torch.Tensor) -> torch.Tensor:
        made = tensor
        if kind is Kind.OUTPUT and self._noise is not None:
            tensor = self._make_noisy(self._noise, call, slot, tensor)
        context = self._context
        boundary = boundary_of(context.adapter, call.module, kind, slot, tensor)
        if boundary is None:
            return tensor
        record_at(context, call, kind, boundary, tensor)
        if _expects_gradient(tensor):
            backward = boundary_of(context.adapter, call.module, GRADIENT_OF[kind], slot, tensor)
            if backward is not None:
                self._watch(call, GRADIENT_OF[kind], backward, tensor, made)
        return tensor

    def end(self) -> None:
        for gradient in list(self._handles):
            self._forget(gradient)  # a leaf may live on and be used in the next step
        self._watched.clear()
        self._noisy.clear()
        self._repeated.clear()

    def _is_used_again(self, tensor: torch.Tensor, watched_as: Gradient, call: Call) -> bool:
        """Whether it is a buffer that a pipeline stage receives other microbatches into."""
        is_other = watched_as[1] != call.microbatch
        return is_other and tensor.is_leaf and self._context.arrivals.came(watched_as)

    def _forget(self, gradient: Gradient) -> None:
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

    def _watch(
        self,
        call: Call,
        kind: Kind,
        boundary: BoundarySpec,
        tensor: torch.Tensor,
        made: torch.Tensor,
    ) -> None:
        """Record the gradient of this tensor, over all its uses, when backward reaches it.

        A module may go on with what it `made` before noise was added: that is a use, too.
        """
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
        hook = Hook(context.guard, id_, Watching._arrived, self, gradient, call, boundary)
        self._handles.setdefault(gradient, []).append(made.register_hook(hook))

    def _arrived(
        self, gradient: Gradient, call: Call, boundary: BoundarySpec, grad: torch.Tensor | None
    ) -> torch.Tensor | None:
        """The gradient that goes on instead; None leaves it as it is."""
        context = self._context
        if grad is None:  # of an operator with several outputs, of which this one is not used
            context.arrivals.settle(gradient)
            return None
        noisy = context.recording(gradient[0], self._record, gradient, call, boundary, grad)
        return None if noisy is None else with_graph_of(grad, noisy)

    def _record(
        self, gradient: Gradient, call: Call, boundary: BoundarySpec, grad: torch.Tensor
    ) -> torch.Tensor | None:
        """The same, of a gradient that is there."""
        context = self._context
        context.calls.arrive(call)
        if context.arrivals.came(gradient):
            if gradient in self._repeated or context.adapter.is_weight_pass():
                return None
            if context.arrivals.came_by(gradient, context.calls.backward):
                raise RuntimeError("its gradient arrived twice; only the first is kept")
        id_ = context.id_arrived(gradient)
        noisy = None
        if self._noise is not None:
            noisy = self._noise.on(grad, f"{id_}@{call.microbatch}")
        value = grad if noisy is None else noisy
        context.recorder.value(id_, value, microbatch=call.microbatch, boundary=boundary)
        return noisy


def _expects_gradient(tensor: torch.Tensor) -> bool:
    """Whether a gradient of this tensor will arrive that is not recorded as a parameter's.

    A view made without autograd says that it requires a gradient when its base does, but gets none.
    """
    if not tensor.requires_grad:
        return False
    if type(tensor) is not torch.Tensor and isinstance(tensor, nn.Parameter):
        return False
    base = tensor._base if tensor.is_leaf else None  # noqa: SLF001  (no public way to ask)
    return base is None or not base.requires_grad


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
