"""The promise that a watched step computes what an unwatched one does, and fits what it shows.

Watched is what capture does with an adapter: every context open, every input and output of every
module asked for its place. Capture itself is not here: it stands above the adapters. And the
promise that a context of an adapter leaves no trace in the framework, whatever happens.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, nullcontext
from dataclasses import dataclass
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import Adapter, Parameter
from ttrace.adapters.conformance.answers import (
    boundary_faults,
    layout_faults,
    part_faults,
    round_trip,
    same_bits,
)
from ttrace.adapters.leaves import input_leaves, leaves
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout

Snapshot = dict[tuple[str, str], Any]
_FUNCTIONS = {FunctionType, BuiltinFunctionType, MethodType, classmethod, property, staticmethod}
_Numbers = dict[str, torch.Tensor | None]


class _Probe(Exception):
    """Raised inside a context, and expected outside of it."""


def contexts_restore_what_they_replace(adapter: Adapter) -> Iterator[str]:
    """Every context opens, closes, opens again, lets an exception pass and restores everything."""
    before = _snapshot(adapter)
    for name, context in contexts(adapter, Ignoring()).items():
        if getattr(type(adapter), name) is getattr(Adapter, name):
            continue
        with context():
            pass
        try:
            with context():
                raise _Probe
        except _Probe:
            pass
        else:
            yield f"{name} keeps an exception for itself"
        after = _snapshot(adapter)
        for owner, attribute in _changed(before, after):
            yield f"{name} does not put {owner}.{attribute} back as it was"
        before = after


class Ignoring:
    """What the contexts are given to call, where it does not matter."""

    def around(self, losses: Any) -> AbstractContextManager[None]:
        return nullcontext()

    def aside(self, slot: Any, value: Any, layout: Any) -> None:
        return

    def before_reduction(self, parameters: Any) -> None:
        return

    def after_reduction(self, parameters: Any) -> None:
        return

    def before_clip(self, norm: Any) -> Any:
        return norm


def contexts(
    adapter: Adapter, called: Ignoring
) -> dict[str, Callable[[], AbstractContextManager[None]]]:
    """Every context of an adapter, in the order in which a step holds them."""
    return {
        "tracking": adapter.tracking,
        "watch_backward": lambda: adapter.watch_backward(called.around),
        "watch_clipping": lambda: adapter.watch_clipping(called.before_clip),
        "watch_accumulation": lambda: adapter.watch_accumulation(called.before_reduction),
        "watch_losses": lambda: adapter.watch_losses(called.aside),
        "watch_reduction": lambda: adapter.watch_reduction(called.after_reduction),
    }


def _snapshot(adapter: Adapter) -> Snapshot:
    """What can be called in all modules that are imported, their classes, and the model."""
    found: Snapshot = {}
    for name, module in list(sys.modules.items()):
        if isinstance(module, ModuleType):
            found |= _callables(name, module)
    classes = {value for value in found.values() if issubclass(type(value), type)}
    for kind in classes:
        found |= _callables(f"{kind.__module__}.{kind.__qualname__}", kind)
    for path, part in adapter.modules():
        owner = f"the module {path!r}"
        found |= _callables(owner, part)
        hooks = {key: len(value) for key, value in vars(part).items() if key.endswith("_hooks")}
        found |= {(owner, key): number for key, number in hooks.items()}
    return found


def _callables(name: str, owner: Any) -> Snapshot:
    # By type, not isinstance: deprecated objects warn when they are asked.
    return {
        (name, key): value
        for key, value in list(vars(owner).items())
        if type(value) in _FUNCTIONS or issubclass(type(value), type)
    }


def _changed(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, str]]:
    """A module or class that was imported meanwhile is no change."""
    owners = {owner for owner, _ in before}
    for key in {**before, **after}:
        if key[0] in owners and before.get(key) is not after.get(key):
            yield key


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A model as a script passes it to `attach`, its optimizers, and one training step.

    The step runs forward, backward and the optimizers, leaves the gradients where they are, and
    returns the loss, or None on a rank that has none.
    """

    model: Any
    optimizers: Sequence[Any]
    step: Callable[[], torch.Tensor | None]


def watching_changes_no_number(
    make_adapter: Callable[[Any], Adapter], make_case: Callable[[], Case]
) -> Iterator[str]:
    """Loss, gradients and updated parameters of a watched step are bitwise the unwatched ones."""
    once, twice = (_numbers(make_adapter, make_case()) for _ in range(2))
    if any(not same_bits(value, twice.get(name)) for name, value in once.items()):
        yield "the case itself gives other numbers each time: make_case must fix the seed"
        return
    case = make_case()
    adapter = make_adapter(case.model)
    watcher = _Watcher(adapter)
    optimizers = adapter.optimizers(case.optimizers)
    for optimizer in optimizers:
        if not isinstance(optimizer, torch.optim.Optimizer):
            yield f"optimizers gives {type(optimizer).__name__}, which is not torch's"
    with watcher.watching():
        loss = case.step()
    yield from watcher.faults
    if not watcher.called:
        yield "no module that the adapter lists was called in the step"
    for parameter in adapter.parameters():
        for kind in (Kind.MAIN_GRAD, Kind.OPTIMIZER, Kind.PARAM_AFTER):
            yield from part_faults(adapter, kind, parameter)
    watched = _read(adapter, loss)
    for name in once.keys() | watched.keys():
        if not same_bits(once.get(name), watched.get(name)):
            yield f"{name} is another number when the step is watched"


def _numbers(make_adapter: Callable[[Any], Adapter], case: Case) -> _Numbers:
    loss = case.step()
    return _read(make_adapter(case.model), loss)


def _read(adapter: Adapter, loss: torch.Tensor | None) -> _Numbers:
    numbers: _Numbers = {"the loss": None if loss is None else adapter.to_local(loss)[0].clone()}
    for parameter in adapter.parameters():
        name = f"{parameter.module}.{parameter.name}".lstrip(".")
        gradient = adapter.main_grad(parameter.tensor)
        local = None if gradient is None else adapter.to_local(gradient)[0].clone()
        numbers[f"the gradient of {name}"] = local
        numbers[f"the updated {name}"] = adapter.to_local(parameter.tensor)[0].clone()
    return numbers


class _Watcher(Ignoring):
    """Hooks on every module and every context of an adapter; keeps what is wrong."""

    def __init__(self, adapter: Adapter) -> None:
        self._adapter = adapter
        self._listed = {id(parameter.tensor) for parameter in adapter.parameters()}
        self.faults: list[str] = []
        self.called = 0

    def watching(self) -> ExitStack:
        """Open from the start; closes every context and removes every hook."""
        with ExitStack() as stack:
            for path, module in self._adapter.modules():
                self._hook(stack, path, module)
            for context in contexts(self._adapter, self).values():
                stack.enter_context(context())
            return stack.pop_all()

    def _hook(self, stack: ExitStack, path: str, module: nn.Module) -> None:
        takes_inputs, gives_outputs = self._adapter.edges(module)

        def entered(_: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            self.called += 1
            if takes_inputs:
                found = input_leaves(args, kwargs)
                self._see(path, module, (Kind.INPUT, Kind.GRAD_INPUT), found)

        def returned(_: nn.Module, args: Any, output: Any) -> None:
            if gives_outputs:
                self._see(path, module, (Kind.OUTPUT, Kind.GRAD_OUTPUT), leaves(output))

        pre = module.register_forward_pre_hook(entered, prepend=True, with_kwargs=True)
        stack.callback(pre.remove)
        stack.callback(module.register_forward_hook(returned).remove)

    def _see(
        self,
        path: str,
        module: nn.Module,
        kinds: Iterable[Kind],
        found: Iterable[tuple[str, torch.Tensor]],
    ) -> None:
        if self._adapter.is_rehearsal():
            return
        for slot, tensor in found:
            for kind in kinds:
                what = f"{kind.value}.{slot} of {path or 'the model'}"
                self._keep(what, boundary_faults(self._adapter, module, kind, slot, tensor, what))
                self._keep(what, round_trip(self._adapter, what, tensor))
        number = self._adapter.microbatch()
        if number is not None and number < 0:
            self.faults.append(f"microbatch {number} in {path}")

    def _keep(self, what: str, faults: Iterable[str]) -> None:
        try:
            with torch.no_grad():
                self.faults += faults
        except Exception as error:  # noqa: BLE001  (other ranks wait for the rest of the step)
            self.faults.append(f"{what}: {type(error).__name__}: {error}")

    def around(self, losses: Sequence[torch.Tensor]) -> AbstractContextManager[None]:
        wrong = [loss for loss in losses if not isinstance(loss, torch.Tensor) or loss.numel() != 1]
        self._keep("watch_backward", (f"a loss is {type(loss).__name__}" for loss in wrong))
        return nullcontext()

    def aside(self, slot: str, value: torch.Tensor, layout: Layout | None) -> None:
        self._keep(slot, layout_faults(self._adapter, f"the loss {slot}", value, layout))

    def before_reduction(self, parameters: Iterable[nn.Parameter]) -> None:
        if not {id(parameter) for parameter in parameters} <= self._listed:
            self.faults.append("watch_accumulation gives a parameter that is not listed")

    def after_reduction(self, parameters: Sequence[Parameter]) -> None:
        if not {id(parameter.tensor) for parameter in parameters} <= self._listed:
            self.faults.append("watch_reduction gives a parameter that is not listed")
        for parameter in parameters:
            self._keep("", part_faults(self._adapter, Kind.REDUCED_GRAD, parameter))
