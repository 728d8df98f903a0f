"""Calls: each call of a module gets a number and a microbatch, also during recomputation.

A call of a root module starts a microbatch, each root counting its own. Inside it the calls of
every module are counted. A recomputed forward (activation checkpointing runs it inside backward) is
matched with the call that it repeats: the outermost module of a recomputed region by the storage of
its input, which the checkpoint kept alive, or by the microbatch whose gradients arrive; everything
below by its place inside that call.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

# Where an input begins. The weak reference keeps its address from being used for another storage.
_Place = tuple[StorageWeakRef, int]


@dataclass(slots=True)
class Call:
    """One call of one module; `children` lists the call numbers of every module called inside."""

    path: str
    microbatch: int
    number: int
    module: nn.Module
    recompute: bool = False
    children: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    recomputed: bool = False
    asides: Counter[str] = field(default_factory=Counter)  # values made but not returned, by slot


class Calls:
    """Counts the calls of one training step."""

    def __init__(self) -> None:
        self.microbatch = 0
        self.backward_microbatch: int | None = None  # of the gradient that arrived last
        self._root_calls: Counter[int] = Counter()
        self._counts: Counter[str] = Counter()
        self._made: dict[tuple[str, int, int], Call] = {}
        self._by_input: dict[tuple[str, _Place], list[Call]] = defaultdict(list)
        # Backward, and with it recomputation, runs on threads of its own for every CUDA device.
        self._stacks = threading.local()

    def enter(
        self,
        path: str,
        module: nn.Module,
        first_input: torch.Tensor | None,
        microbatch: int | None = None,
    ) -> Call:
        """The call that starts now; `microbatch` is its number where the framework says it."""
        stack = self._stack()
        parent = stack[-1] if stack else None
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001  (no public way to ask)
            call = self._repeat(path, module, parent, first_input)
        else:
            call = self._first(path, module, parent, first_input, microbatch)
        stack.append(call)
        return call

    def leave(self) -> None:
        stack = self._stack()
        if stack:
            stack.pop()

    def current(self) -> Call:
        return self._stack()[-1]

    @property
    def called_paths(self) -> set[str]:
        return {key[0] for key in self._made}

    def _first(
        self,
        path: str,
        module: nn.Module,
        parent: Call | None,
        first_input: torch.Tensor | None,
        microbatch: int | None,
    ) -> Call:
        if parent is None and path == "":
            nth = self._root_calls[id(module)]
            self.microbatch = nth if microbatch is None else microbatch
            self._root_calls[id(module)] += 1
            self._counts.clear()
        call = Call(path, self.microbatch, self._counts[path], module)
        self._counts[path] += 1
        if parent is not None:
            parent.children[path].append(call.number)
        self._made[path, call.microbatch, call.number] = call
        self._remember(call, first_input)
        return call

    def _repeat(
        self, path: str, module: nn.Module, parent: Call | None, first_input: torch.Tensor | None
    ) -> Call:
        original = self._original(path, parent, first_input)
        if original is None:
            return Call(path, self.microbatch, 0, module, recompute=True)
        original.recomputed = True
        self._remember(original, first_input)  # a region inside this one starts from it again
        return Call(path, original.microbatch, original.number, module, recompute=True)

    def _original(
        self, path: str, parent: Call | None, first_input: torch.Tensor | None
    ) -> Call | None:
        if parent is not None and parent.recompute:
            repeated = self._made.get((parent.path, parent.microbatch, parent.number))
            made = repeated.children.get(path, []) if repeated else []
            nth = len(parent.children[path])
            parent.children[path].append(nth)
            if nth < len(made):
                return self._made[path, parent.microbatch, made[nth]]
        place = _place(first_input)
        calls = self._by_input.get((path, place), []) if place is not None else []
        # A region that is no module may give its first module an input that it computed again.
        calls = calls or [call for key, call in self._made.items() if key[0] == path]
        return max(calls, key=self._likelihood, default=None)

    def _likelihood(self, call: Call) -> tuple[bool, bool, int, int]:
        """How likely a recomputed region repeats this call; the largest is taken.

        Backward goes through one microbatch at a time, and through its regions in reverse.
        """
        in_backward = call.microbatch == self.backward_microbatch
        return in_backward, not call.recomputed, call.microbatch, call.number

    def _remember(self, call: Call, first_input: torch.Tensor | None) -> None:
        if (place := _place(first_input)) is not None:
            self._by_input[call.path, place].append(call)

    def _stack(self) -> list[Call]:
        if not hasattr(self._stacks, "calls"):
            self._stacks.calls = []
        return self._stacks.calls


def _place(tensor: torch.Tensor | None) -> _Place | None:
    if tensor is None:
        return None
    try:
        return StorageWeakRef(tensor.untyped_storage()), int(tensor.storage_offset())
    except RuntimeError:  # sparse tensors have no storage
        return None
