"""Taps: hooks that separate every use of a tensor, and can overwrite what passes.

At every module boundary a private autograd function stands between producer and consumer. It
records the natural value and hands on a fresh copy, or the reference's values in an isolated run;
in backward it does the same with the gradient. Each segment between two taps then starts from
correct values, so what is wrong at its end was made wrong inside it. Taps regroup the sums of
gradients, so a reference that is to be compared with an isolated run is recorded with taps as well.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import Adapter, BoundarySpec
from ttrace.adapters.leaves import map_leaves
from ttrace.capture.annotate import boundary_of
from ttrace.capture.calls import Call
from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.recorder import Recorder
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout

Change = Callable[[torch.Tensor], torch.Tensor]


class TappingHooks(ModuleHooks):
    """Taps on all modules; `overwriter` is None when values are only recorded."""

    def __init__(self, adapter: Adapter, recorder: Recorder, overwriter: Overwriter | None) -> None:
        super().__init__(adapter, recorder, noise=None)
        self._overwriter = overwriter

    def _entered(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        call, _ = self._enter(path, module, args, kwargs)

        def tap(slot: str, tensor: torch.Tensor) -> torch.Tensor:
            return self._tap(call, Kind.INPUT, Kind.GRAD_INPUT, slot, tensor)

        return map_leaves(args, tap), map_leaves(kwargs, tap)

    def _returned(self, path: str, output: Any) -> Any:
        call = self.calls.current()

        def tap(slot: str, tensor: torch.Tensor) -> torch.Tensor:
            return self._tap(call, Kind.OUTPUT, Kind.GRAD_OUTPUT, slot, tensor)

        return map_leaves(output, tap)

    def _tap(
        self, call: Call, kind: Kind, gradient_kind: Kind, slot: str, tensor: torch.Tensor
    ) -> torch.Tensor:
        boundary = boundary_of(self._adapter, call.module, kind, slot, tensor)
        back = boundary_of(self._adapter, call.module, gradient_kind, slot, tensor)
        if boundary is None:
            return tensor
        forward = self._forward(call, kind, boundary)
        if isinstance(tensor, nn.Parameter):
            self._write(call, self._id(call, kind, boundary.slot), boundary, tensor)
            return tensor
        if not tensor.is_floating_point():
            # What a module chose (experts, say) is its output as any other.
            passed = forward(tensor)
            return passed if kind is Kind.OUTPUT else tensor
        id_ = self._id(call, kind, boundary.slot)
        backward: Change = _same
        if back is not None:
            backward = self._backward(call, id_, gradient_kind, back, tensor)
        with torch.set_grad_enabled(tensor.requires_grad):
            tapped: torch.Tensor = _Tap.apply(tensor, forward, backward)
        self._adapter.inherit(tapped, tensor)
        return tapped

    def _forward(self, call: Call, kind: Kind, boundary: BoundarySpec) -> Change:
        id_ = self._id(call, kind, boundary.slot)

        def forward(tensor: torch.Tensor) -> torch.Tensor:
            self._write(call, id_, boundary, tensor)
            replaced = self._reference(id_, call.microbatch, tensor, id_, None, boundary)
            if replaced is not None:
                return replaced
            return self._adapter.wrap_like(self._adapter.to_local(tensor)[0].clone(), like=tensor)

        return forward

    def _write(
        self, call: Call, id_: TensorId, boundary: BoundarySpec, tensor: torch.Tensor
    ) -> None:
        self._recorder.value(
            id_, tensor, microbatch=call.microbatch, recompute=call.recompute, boundary=boundary
        )

    def _backward(
        self,
        call: Call,
        id_: TensorId,
        gradient_kind: Kind,
        boundary: BoundarySpec,
        tensor: torch.Tensor,
    ) -> Change:
        gradient_id = self._id(call, gradient_kind, boundary.slot)
        key = (gradient_id, call.microbatch)
        if tensor.requires_grad and key not in self._pending:
            self._pending[key] = False
            self.expected += 1

        def backward(grad: torch.Tensor) -> torch.Tensor:
            self.calls.backward_microbatch = call.microbatch
            if not self._pending.get(key):
                self._pending[key] = True
                self.fired += 1
            self._recorder.value(
                gradient_id,
                grad,
                microbatch=call.microbatch,
                boundary=boundary,
            )
            replaced = self._reference(
                gradient_id, call.microbatch, grad, id_, boundary.layout, boundary
            )
            return grad if replaced is None else replaced

        return lambda grad: _or(grad, self._guarded(str(gradient_id), lambda: backward(grad)))

    def _reference(
        self,
        id_: TensorId,
        microbatch: int,
        tensor: torch.Tensor,
        position_id: TensorId,
        inner: Layout | None,
        boundary: BoundarySpec,
    ) -> torch.Tensor | None:
        """What the reference has in place of this tensor, if it is to be overwritten."""
        if self._overwriter is None:
            return None
        if boundary.rows:
            return self._overwriter.sent(id_, microbatch, tensor, position_id, boundary.rows)
        return self._overwriter.value(id_, microbatch, tensor, position_id, inner, boundary.dims)


def _same(grad: torch.Tensor) -> torch.Tensor:
    return grad


def _or(grad: torch.Tensor, changed: torch.Tensor | None) -> torch.Tensor:
    return grad if changed is None else changed


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
