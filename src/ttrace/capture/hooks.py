"""The hooks on modules: they say which call it is, and show every tensor to a boundary.

One prepended pre-hook and one appended hook on each module, so that collectives which frameworks
run in hooks of their own lie inside the module. No hook calls a collective.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from ttrace.adapters.leaves import input_leaves, leaves, map_leaves
from ttrace.capture.boundary import Boundary
from ttrace.capture.calls import Call
from ttrace.capture.context import StepContext
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout


class ModuleHooks:
    """Hooks on all modules of a model; they do nothing outside of a step."""

    def __init__(self, context: StepContext, boundary: Boundary) -> None:
        self._context = context
        self._boundary = boundary
        modules = list(context.adapter.modules())
        self._paths = [path for path, module in modules if _is_callable(module)]
        self._handles = [
            handle for path, module in modules for handle in self._install(path, module)
        ]

    def remove(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles.clear()

    def aside(self, slot: str, value: torch.Tensor, layout: Layout | None) -> None:
        """Record a value that the module which runs now makes but does not return.

        The second one of the same slot in one call is recorded as `slot.1`, and so on.
        """
        self._context.guarded(slot, lambda: self._record_aside(slot, value, layout))

    def as_call(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, as a call of its module.

        Only these hooks are run: those of others would meet arguments that are not for them.
        """
        path = next(path for path, each in self._context.adapter.modules() if each is module)
        caller = _Caller(method)
        self._handles += self._install(path, module, on=caller)
        return caller

    def never_called(self) -> tuple[str, ...]:
        """Modules that have a forward of their own but were not called in the last step."""
        called = self._context.calls.called_paths
        return tuple(path for path in self._paths if path not in called)

    def _record_aside(self, slot: str, value: torch.Tensor, layout: Layout | None) -> None:
        call = self._current()
        made = call.asides[slot]
        call.asides[slot] += 1
        name = f"{slot}.{made}" if made else slot
        self._context.recorder.value(
            self._context.id_in(call, Kind.OUTPUT, name),
            value,
            microbatch=call.microbatch,
            recompute=call.recompute,
            layout=layout,
        )

    def _install(
        self, path: str, module: nn.Module, on: nn.Module | None = None
    ) -> list[RemovableHandle]:
        """Hooks that tell of a module, on itself or on what is called instead of it."""
        context = self._context
        takes_inputs, gives_outputs = context.adapter.edges(module)

        def pre(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            keeps_graph = torch.is_grad_enabled()

            def enter() -> Any:
                inputs = self._enter(path, module, args, kwargs, keeps_graph=keeps_graph)
                return self._entered(args, kwargs, inputs) if takes_inputs else None

            return context.guarded(path, enter)

        def post(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
            if not gives_outputs:
                return None
            return context.guarded(path, lambda: self._returned(output))

        def leave(*_: Any) -> None:
            if context.number is not None:
                context.calls.leave()

        on = module if on is None else on
        return [
            on.register_forward_pre_hook(eager(pre), prepend=True, with_kwargs=True),
            on.register_forward_hook(eager(post), with_kwargs=True),
            # Also after an exception: early-stopped recomputation leaves modules by one.
            on.register_forward_hook(eager(leave), always_call=True),
        ]

    def _entered(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        inputs: Sequence[tuple[str, torch.Tensor]],
    ) -> Any:
        """What the module gets instead of its arguments; None leaves them as they are."""
        meet = partial(self._boundary.meet, self._current(), Kind.INPUT)
        if self._boundary.changes_inputs:
            return map_leaves(args, meet), map_leaves(kwargs, meet)
        for slot, tensor in inputs:
            meet(slot, tensor)
        return None

    def _enter(
        self,
        path: str,
        module: nn.Module,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        *,
        keeps_graph: bool,
    ) -> list[tuple[str, torch.Tensor]]:
        """Count the call; its inputs by slot."""
        adapter = self._context.adapter
        inputs: list[tuple[str, torch.Tensor]] = []
        first = None
        try:
            inputs += input_leaves(args, kwargs)
            # Reentrant checkpointing keeps no graph either, of something that needs gradients.
            keeps_graph = keeps_graph or any(tensor.requires_grad for _, tensor in inputs)
            first = next((adapter.to_local(tensor)[0] for _, tensor in inputs), None)
        finally:
            # Also after a fault: `leave` will run.
            number = adapter.microbatch()
            self._context.calls.enter(path, module, first, number, keeps_graph=keeps_graph)
        self._context.places.meet(path, inside_modules=bool(path))
        return inputs

    def _returned(self, output: Any) -> Any:
        """What goes on instead of the output; None leaves it as it is."""
        meet = partial(self._boundary.meet, self._current(), Kind.OUTPUT)
        if self._boundary.changes_outputs:
            return map_leaves(output, meet)
        for slot, tensor in leaves(output):
            meet(slot, tensor)
        return None

    def _current(self) -> Call:
        call = self._context.calls.current()
        assert call is not None  # a hook before this one entered it
        return call


class _Caller(nn.Module):
    """Runs a method of another module, so that hooks can be around it."""

    def __init__(self, method: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = method


def eager(hook: Callable[..., Any]) -> Callable[..., Any]:
    """A hook that a compiler must not trace into: it would see no values.

    Whoever compiles has imported torch._dynamo; for all others that would be a second of import.
    """
    return torch.compiler.disable(hook) if "torch._dynamo" in sys.modules else hook


def _is_callable(module: nn.Module) -> bool:
    """Whether a module has a forward of its own; containers such as ModuleList have none."""
    return getattr(module.forward, "__func__", None) is not nn.Module.forward
