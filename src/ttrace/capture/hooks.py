"""The hooks on modules: they say which call it is, and show every tensor to a boundary.

One prepended pre-hook and one appended hook on each module, so that collectives which frameworks
run in hooks of their own lie inside the module. No hook calls a collective.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import nn

from ttrace.adapters.leaves import input_leaves, leaves, map_leaves
from ttrace.capture.boundary import Boundary
from ttrace.capture.calls import Call
from ttrace.capture.context import StepContext, outside_autograd
from ttrace.capture.guard import module_hook
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout


class ModuleHooks:
    """Hooks on all modules of a model; they do nothing outside of a step."""

    def __init__(self, context: StepContext, boundary: Boundary) -> None:
        self._context = context
        self._boundary = boundary
        modules = list(context.adapter.modules())
        self._paths = [path for path, module in modules if _is_callable(module)]
        for path, module in modules:
            self._install(path, module)

    def aside(self, slot: str, value: torch.Tensor, layout: Layout | None) -> None:
        """Record a value that the module which runs now makes but does not return.

        The second one of the same slot in one call is recorded as `slot.1`, and so on.
        """
        self._context.recording(slot, self._record_aside, slot, value, layout)

    def as_call(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method, as a call of its module.

        Only these hooks are run: those of others would meet arguments that are not for them.
        """
        path = next(path for path, each in self._context.adapter.modules() if each is module)
        caller = _Caller(method)
        self._install(path, module, on=caller)
        return caller

    def never_called(self) -> tuple[str, ...]:
        """Modules that have a forward of their own but were not called in the last step."""
        called = self._context.calls.called_paths
        return tuple(path for path in self._paths if path not in called)

    def _record_aside(self, slot: str, value: torch.Tensor, layout: Layout | None) -> None:
        call = self._current()
        made = call.asides.get(slot, 0)
        call.asides[slot] = made + 1
        name = f"{slot}.{made}" if made else slot
        self._context.recorder.value(
            self._context.id_in(call, Kind.OUTPUT, name),
            value,
            microbatch=call.microbatch,
            recompute=call.recompute,
            layout=layout,
        )

    def _install(self, path: str, module: nn.Module, on: nn.Module | None = None) -> None:
        """Hooks that tell of a module, on itself or on what is called instead of it."""
        context = self._context
        takes_inputs, gives_outputs = context.adapter.edges(module)

        def pre(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
            if not context.is_recording():
                return None
            is_graph_kept = torch.is_grad_enabled()
            return outside_autograd(enter, args, kwargs, is_graph_kept)

        def enter(args: tuple[Any, ...], kwargs: dict[str, Any], is_graph_kept: bool) -> Any:  # noqa: FBT001
            found = context.guard.recording(path, self._look, args, kwargs)
            self._enter(path, module, found or _NOTHING, keeps_graph=is_graph_kept)
            if found is None or not takes_inputs:
                return None
            return context.guard.recording(path, self._entered, args, kwargs, found)

        def post(_: nn.Module, args: tuple[Any, ...], output: Any) -> Any:
            try:
                return context.recording(path, self._returned, output) if gives_outputs else None
            finally:
                if context.number is not None:
                    context.calls.leave()

        on = module if on is None else on
        hook = partial(module_hook, context.guard, path)
        put = context.guard.handles.add
        put(on.register_forward_pre_hook(hook(pre), prepend=True, with_kwargs=True))
        # Also after an exception, then mostly without an output: early-stopped recomputation leaves
        # modules by one.
        put(on.register_forward_hook(hook(post), always_call=True))

    def _look(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Inputs:
        tensors = input_leaves(args, kwargs)
        if not tensors:
            return _NOTHING
        first = tensors[0][1]
        if type(first) is not torch.Tensor:
            first = self._context.adapter.to_local(first)[0]
        return _Inputs(tensors, first)

    def _enter(self, path: str, module: nn.Module, found: _Inputs, *, keeps_graph: bool) -> None:
        """Count the call, also where its inputs cannot be recorded: `leave` will run."""
        context = self._context
        number = context.adapter.microbatch()
        # Reentrant checkpointing keeps no graph either, of something that needs gradients.
        keeps_graph = keeps_graph or any(tensor.requires_grad for _, tensor in found.tensors)
        context.calls.enter(path, module, found.first, number, keeps_graph=keeps_graph)
        context.places.meet(path, inside_modules=bool(path))

    def _entered(
        self,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        found: _Inputs,
    ) -> Any:
        """What the module gets instead of its arguments; None leaves them as they are."""
        call, meet = self._current(), self._boundary.meet
        if self._boundary.changes_inputs:
            change = partial(meet, call, Kind.INPUT)
            return map_leaves(args, change), map_leaves(kwargs, change)
        for slot, tensor in found.tensors:
            meet(call, Kind.INPUT, slot, tensor)
        return None

    def _returned(self, output: Any) -> Any:
        """What goes on instead of the output; None leaves it as it is."""
        call, meet = self._current(), self._boundary.meet
        if self._boundary.changes_outputs:
            return map_leaves(output, partial(meet, call, Kind.OUTPUT))
        for slot, tensor in leaves(output):
            meet(call, Kind.OUTPUT, slot, tensor)
        return None

    def _current(self) -> Call:
        call = self._context.calls.current()
        assert call is not None  # a hook before this one entered it
        return call


class _Inputs(NamedTuple):
    """The tensors that a module gets, by slot; the first of them as this rank holds it."""

    tensors: Sequence[tuple[str, torch.Tensor]] = ()
    first: torch.Tensor | None = None


_NOTHING = _Inputs()


class _Caller(nn.Module):
    """Runs a method of another module, so that hooks can be around it."""

    def __init__(self, method: Callable[..., Any]) -> None:
        super().__init__()
        self.forward = method


def _is_callable(module: nn.Module) -> bool:
    """Whether a module has a forward of its own; containers such as ModuleList have none."""
    return getattr(module.forward, "__func__", None) is not nn.Module.forward
