"""The local gradient of every parameter: by one microbatch of one rank, before any reduction.

A tensor hook on a leaf fires once a backward pass, with the sum over all uses. FSDP2 computes with
an unsharded parameter of its own, which stands in the module only while that runs: so leaves are
looked up in a pre-hook that runs after the framework's. Tied parameters go by their first name.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import nn

from ttrace.adapters.leaves import own_parameters
from ttrace.capture.annotate import annotated_layout
from ttrace.capture.calls import BackwardPass
from ttrace.capture.context import StepContext, outside_autograd
from ttrace.capture.guard import Handles, Hook, module_hook
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout

Name = tuple[str, str]  # module, parameter
_Modules = tuple[tuple[str, nn.Module], ...]


@dataclass(slots=True)
class _Sum:
    """The parts that arrived so far of one gradient, summed."""

    id: TensorId  # by the first backward pass
    local: torch.Tensor
    layout: Layout | None
    sequence: int


class WeightHooks:
    """Hooks on all parameters of a model; they do nothing outside of a step."""

    def __init__(self, context: StepContext) -> None:
        self._context = context
        self._names: dict[Name, Name] = {}
        # Parameters instead of which modules compute with other tensors: names, by module.
        self._elsewhere: dict[str, list[str]] = defaultdict(list)
        # Watched, or with nothing to watch; kept alive, so that an id has one owner.
        self._known: dict[int, torch.Tensor] = {}
        self._uses: dict[tuple[Name, int], int] = {}  # how many, by microbatch
        self._sums: dict[tuple[Name, int], _Sum] = {}
        self._came: dict[tuple[Name, int], list[BackwardPass]] = {}  # by which each came
        self._seen: set[Name] = set()
        self._leaf_handles = Handles()
        modules = list(context.adapter.modules())
        for path, module in modules:
            where = f"the parameters of {path}"
            meet = partial(self._meet, where, path, _below(path, modules))
            hook = module_hook(context.guard, where, meet)
            context.guard.handles.add(module.register_forward_pre_hook(hook))

    def begin(self) -> None:
        adapter = self._context.adapter
        parameters = list(adapter.parameters())
        first = {id(p.tensor): (p.module, p.name) for p in parameters if p.computes}
        self._known = {id(p.tensor): p.tensor for p in parameters if not p.computes}
        self._names = {
            (path, name): first[id(parameter)]
            for path, module in adapter.modules()
            for name, parameter in own_parameters(module)
            if id(parameter) in first
        }
        self._elsewhere = defaultdict(list)
        for parameter in parameters:
            if parameter.computes:
                self._watch((parameter.module, parameter.name), parameter.tensor)
            else:
                self._elsewhere[parameter.module].append(parameter.name)

    def end_backward(self) -> None:
        """Record gradients that came in parts: no part is to come any more."""
        sums, self._sums = self._sums, {}
        for (name, microbatch), found in sums.items():
            self._write(name, microbatch, found)

    def end(self) -> None:
        self._leaf_handles.remove()
        self._known.clear()
        self._uses.clear()
        self._sums.clear()
        self._came.clear()
        self._seen.clear()

    def has(self, module: str, parameter: str) -> bool:
        """Whether a gradient of this parameter was recorded in this step."""
        return (module, parameter) in self._seen

    @property
    def has_any(self) -> bool:
        """Whether a gradient of any parameter was recorded in this step."""
        return bool(self._seen)

    def _meet(self, where: str, path: str, below: _Modules, module: nn.Module, _: object) -> None:
        if self._context.number is not None:
            self._context.guard.recording(where, self._look, path, below, module)

    def _look(self, path: str, below: _Modules, module: nn.Module) -> None:
        is_recomputed = torch._C._current_graph_task_id() >= 0  # noqa: SLF001  (no public way)
        if not is_recomputed and module._parameters:  # noqa: SLF001
            self._count_uses(path, module)
        # Parents use the parameters of modules that they never call: nn.MultiheadAttention.
        known = self._known
        for inner_path, inner in below:
            for name, parameter in inner._parameters.items():  # noqa: SLF001
                if parameter is not None and id(parameter) not in known:
                    self._watch(self._first_name(inner_path, name), parameter)
        for name in self._elsewhere.get(path, ()):
            self._watch((path, name), getattr(module, name))

    def _count_uses(self, path: str, module: nn.Module) -> None:
        call = self._context.calls.current()
        if call is not None and not call.at.apart:
            for name in module._parameters:  # noqa: SLF001
                use = self._first_name(path, name), call.microbatch
                self._uses[use] = self._uses.get(use, 0) + 1

    def _first_name(self, path: str, name: str) -> Name:
        return self._names.get((path, name), (path, name))

    def _watch(self, name: Name, parameter: torch.Tensor) -> None:
        if id(parameter) in self._known or not parameter.requires_grad:
            return
        self._known[id(parameter)] = parameter
        where = f"the hook of parameter {'.'.join(name)}"
        hook = Hook(self._context.guard, where, WeightHooks._arrived, self, name, parameter)
        self._leaf_handles.add(parameter.register_hook(hook))

    def _arrived(self, name: Name, parameter: torch.Tensor, grad: torch.Tensor) -> None:
        context = self._context
        if context.number is not None:
            id_ = context.id(name[0], Kind.GRAD, name[1])
            known = annotated_layout(parameter, grad)
            outside_autograd(context.guard.recording, id_, self._take, id_, name, grad, known)

    def _take(self, id_: TensorId, name: Name, grad: torch.Tensor, known: Layout | None) -> None:
        context = self._context
        microbatch = context.adapter.backward_microbatch()
        if microbatch is None:
            microbatch = context.calls.in_backward(context.root_of(name[0])).number
        key = (name, microbatch)
        if context.calls.backward in self._came.get(key, ()):
            raise RuntimeError("its gradient arrived twice; only the first is kept")
        local, layout = context.adapter.to_local(grad)
        layout = known or layout or context.adapter.local_gradient_layout(*name)
        if self._uses.get(key, 0) <= 1:
            whole = _Sum(id_, grad, layout, context.recorder.next_sequence())
            self._write(name, microbatch, whole)
        elif key not in self._sums:
            # Reentrant checkpointing runs a backward pass for every region: each brings its part.
            next_sequence = context.recorder.next_sequence()
            self._sums[key] = _Sum(id_, local.clone(), layout, next_sequence)
        elif self._sums[key].layout != layout:
            raise RuntimeError("its parts have different layouts; only the first is kept")
        else:
            self._sums[key].local += local

    def _write(self, name: Name, microbatch: int, found: _Sum) -> None:
        passes = self._came.setdefault((name, microbatch), [])
        turn = len(passes)
        passes.append(self._context.calls.backward)
        self._seen.add(name)
        self._context.recorder.value(
            replace(found.id, turn=turn) if turn else found.id,
            found.local,
            microbatch=microbatch,
            layout=found.layout,
            sequence=found.sequence,
        )


def _below(path: str, modules: Sequence[tuple[str, nn.Module]]) -> _Modules:
    """The module itself and everything inside it."""
    prefix = f"{path}." if path else ""
    return tuple(
        (other, module) for other, module in modules if other == path or other.startswith(prefix)
    )
