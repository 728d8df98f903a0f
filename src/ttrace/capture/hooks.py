"""The hooks on modules and on the tensors that pass between them.

One prepended pre-hook and one appended hook on each module, so that collectives which frameworks
run in hooks of their own lie inside the module. Gradients come from tensor hooks on every leaf,
never from full backward hooks, which break programs that work in place. No hook calls a collective.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ttrace.adapters.base import Adapter, BoundarySpec
from ttrace.adapters.leaves import input_leaves, leaves, map_leaves
from ttrace.capture.annotate import boundary_of
from ttrace.capture.calls import Call, Calls
from ttrace.capture.noise import Noise
from ttrace.capture.objects import ObjectMemory
from ttrace.capture.recorder import Recorder
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout


class ModuleHooks:
    """Watches all modules of a model; records only between `begin` and `end` of a step."""

    def __init__(self, adapter: Adapter, recorder: Recorder, noise: Noise | None) -> None:
        self._adapter = adapter
        self._recorder = recorder
        self._noise = noise
        self._step: int | None = None
        self.calls = Calls()
        self._watched: ObjectMemory[TensorId] = ObjectMemory()
        self._noisy: ObjectMemory[TensorId] = ObjectMemory()
        self._pending: dict[tuple[TensorId, int], bool] = {}
        self._repeated: set[tuple[TensorId, int]] = set()
        self.expected = 0
        self.fired = 0
        self.unfired: list[str] = []
        self._handles: list[RemovableHandle] = []
        self._tensor_handles: list[RemovableHandle] = []
        self._paths = [path for path, module in adapter.modules() if _is_callable(module)]
        for path, module in adapter.modules():
            self._handles += self._install(path, module)

    def begin(self, step: int) -> None:
        self._step = step
        self.calls = Calls()

    def end(self) -> None:
        self._step = None
        self.unfired += [str(id_) for (id_, _), fired in self._pending.items() if not fired]
        self._pending.clear()
        self._repeated.clear()
        for handle in self._tensor_handles:
            handle.remove()  # a leaf may live on and be used in the next step
        self._tensor_handles.clear()
        self._watched.clear()
        self._noisy.clear()

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def aside(self, slot: str, value: torch.Tensor, layout: Layout | None) -> None:
        """Record what the module that runs now makes but does not return; again: the next."""

        def record() -> None:
            call = self.calls.current()
            made = call.asides[slot]
            call.asides[slot] += 1
            self._recorder.value(
                self._id(call, Kind.OUTPUT, f"{slot}.{made}" if made else slot),
                value,
                microbatch=call.microbatch,
                recompute=call.recompute,
                layout=layout,
            )

        self._guarded(slot, record)

    def never_called(self) -> tuple[str, ...]:
        """Modules that have a forward of their own but were not called in the last step."""
        called = self.calls.called_paths
        return tuple(path for path in self._paths if path not in called)

    def _install(self, path: str, module: nn.Module) -> list[RemovableHandle]:
        takes_inputs, gives_outputs = self._adapter.edges(module)

        def pre(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            enter = self._entered if takes_inputs else self._enter_unseen
            return self._guarded(path, lambda: enter(path, module, args, kwargs))

        def post(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if not gives_outputs:
                return None
            return self._guarded(path, lambda: self._returned(path, output))

        def leave(*_: Any) -> None:
            if self._step is not None:
                self.calls.leave()

        return [
            module.register_forward_pre_hook(eager(pre), prepend=True, with_kwargs=True),
            module.register_forward_hook(eager(post), with_kwargs=True),
            # Also after an exception: early-stopped recomputation leaves modules by one.
            module.register_forward_hook(eager(leave), always_call=True),
        ]

    def _guarded(self, where: str, work: Callable[[], Any]) -> Any:
        if self._step is None or self._adapter.is_rehearsal():
            return None
        try:
            with torch.no_grad():
                return work()
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the training run)
            self._recorder.fault(where, error)
            return None

    def _entered(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """What the module gets instead of its arguments; None leaves them as they are."""
        call, inputs = self._enter(path, module, args, kwargs)
        for slot, tensor in inputs:
            self._record(call, Kind.INPUT, Kind.GRAD_INPUT, slot, tensor)

    def _enter_unseen(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        self._enter(path, module, args, kwargs)

    def _enter(
        self, path: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Call, list[tuple[str, torch.Tensor]]]:
        inputs: list[tuple[str, torch.Tensor]] = []
        first = None
        try:
            inputs += input_leaves(args, kwargs)
            first = next((self._adapter.to_local(tensor)[0] for _, tensor in inputs), None)
        finally:
            # Also after a fault: `leave` will run.
            call = self.calls.enter(path, module, first, self._adapter.microbatch())
        return call, inputs

    def _returned(self, path: str, output: Any) -> Any:
        call = self.calls.current()
        if self._noise is not None:
            output = map_leaves(output, lambda slot, tensor: self._make_noisy(call, slot, tensor))
        for slot, tensor in leaves(output):
            self._record(call, Kind.OUTPUT, Kind.GRAD_OUTPUT, slot, tensor)
        return output if self._noise is not None else None

    def _id(self, call: Call, kind: Kind, slot: str) -> TensorId:
        assert self._step is not None
        return TensorId(step=self._step, module=call.path, kind=kind, slot=slot, call=call.number)

    def _make_noisy(self, call: Call, slot: str, tensor: torch.Tensor) -> torch.Tensor:
        assert self._noise is not None
        if self._noisy.find(tensor) is not None:
            return tensor  # a child returned it: noisy already
        id_ = self._id(call, Kind.OUTPUT, slot)
        with torch.set_grad_enabled(tensor.requires_grad):
            noisy = self._noise.on(tensor, f"{id_}@{call.microbatch}")
        self._noisy.keep(noisy, id_)
        return noisy

    def _record(
        self, call: Call, kind: Kind, gradient_kind: Kind, slot: str, tensor: torch.Tensor
    ) -> None:
        boundary = boundary_of(self._adapter, call.module, kind, slot, tensor)
        if boundary is None:
            return
        self._recorder.value(
            self._id(call, kind, boundary.slot),
            tensor,
            microbatch=call.microbatch,
            recompute=call.recompute,
            boundary=boundary,
        )
        backward = boundary_of(self._adapter, call.module, gradient_kind, slot, tensor)
        if _expects_gradient(tensor) and backward is not None:
            self._watch(call, self._id(call, gradient_kind, backward.slot), tensor, backward)

    def _watch(
        self, call: Call, id_: TensorId, tensor: torch.Tensor, boundary: BoundarySpec
    ) -> None:
        """Record the gradient of this tensor, over all its uses, when backward reaches it."""
        key = (id_, call.microbatch)
        if key in self._pending and (self._pending[key] or not call.recompute):
            return
        known = self._watched.find(tensor)
        if known is not None:
            if key not in self._pending:
                self._pending[key] = True
                self._recorder.mention(id_, tensor, microbatch=call.microbatch, same_as=known)
            return
        self._watched.keep(tensor, id_)
        if key in self._pending:
            # The gradient flows through the original, through the repetition, or through both.
            self._repeated.add(key)
        else:
            self.expected += 1
            self._pending[key] = False

        def arrived(grad: torch.Tensor) -> torch.Tensor | None:
            return self._guarded(str(id_), lambda: record(grad))

        def record(grad: torch.Tensor) -> torch.Tensor | None:
            self.calls.backward_microbatch = call.microbatch
            if self._pending.get(key):
                if key in self._repeated:
                    return None
                raise RuntimeError("its gradient arrived twice; only the first is kept")
            self._pending[key] = True
            self.fired += 1
            noisy = None
            if self._noise is not None:
                noisy = self._noise.on(grad, f"{id_}@{call.microbatch}")
            self._recorder.value(
                id_,
                grad if noisy is None else noisy,
                microbatch=call.microbatch,
                boundary=boundary,
            )
            return noisy

        self._tensor_handles.append(tensor.register_hook(arrived))


def eager(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that a compiler must not trace into: it would see no values.

    Whoever compiles has imported torch._dynamo; for all others that would be a second of import.
    """
    return torch.compiler.disable(hook) if "torch._dynamo" in sys.modules else hook


def _expects_gradient(tensor: torch.Tensor) -> bool:
    """Parameters passed to a module have theirs recorded as parameters.

    A view made without autograd says that it requires a gradient when its base does, but gets none.
    """
    base = tensor._base  # noqa: SLF001  (no public way to ask)
    detached_view = tensor.is_leaf and base is not None and base.requires_grad
    return tensor.requires_grad and not detached_view and not isinstance(tensor, nn.Parameter)


def _is_callable(module: nn.Module) -> bool:
    """Containers such as ModuleList have no forward of their own."""
    return getattr(module.forward, "__func__", None) is not nn.Module.forward
