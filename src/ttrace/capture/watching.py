"""Watching: values are recorded as they pass, and gradients when they arrive."""

from __future__ import annotations

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ttrace.adapters.base import BoundarySpec
from ttrace.capture.annotate import boundary_of
from ttrace.capture.boundary import GRADIENT_OF, record_at, with_graph_of
from ttrace.capture.calls import Call
from ttrace.capture.context import Gradient, StepContext
from ttrace.capture.guard import Hook
from ttrace.capture.noise import Noise
from ttrace.capture.objects import ObjectMemory
from ttrace.core.ids import Kind, TensorId


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
