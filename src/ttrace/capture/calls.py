"""Calls: each call of a module gets a number and a microbatch, also during recomputation.

A call of a root module starts a microbatch, each root counting its own. Inside it the calls of
every module are counted. A call that keeps no graph (a teacher, an evaluation, a rollout) starts
none: it is counted apart, with all that it calls. A recomputed forward (activation checkpointing
runs it inside backward) is matched with the call that it repeats: the outermost module of a
recomputed region by the storage of its input, which the checkpoint kept alive, or by the microbatch
whose gradients arrive; everything below by its place inside that call.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef

from ttrace.core.ids import root_of

# What calls are found by: plain values only, which the garbage collector need not look into.
_Made = tuple[str, str, int, bool, int]  # path, the call of the root, number
_Input = tuple[str, int, int]  # path, storage of the first input, where in it


class BackwardPass(NamedTuple):
    """The how manieth backward of a step; `asked`: of a gradient that somebody asked for."""

    number: int = 0
    asked: bool = False


class RootCall(NamedTuple):
    """Which call of a root, among those with gradients or among those apart."""

    root: str = ""
    number: int = 0
    apart: bool = False


@dataclass(slots=True)
class Call:
    """One call of one module; `children` lists the call numbers of every module called inside."""

    path: str
    at: RootCall
    number: int
    module: nn.Module
    recompute: bool = False
    children: dict[str, list[int]] = field(default_factory=dict)
    recomputed: bool = False
    is_outermost: bool = False  # what it takes is what the model is given
    asides: dict[str, int] = field(default_factory=dict)  # how many values it made aside, by slot

    @property
    def microbatch(self) -> int:
        return self.at.number


class _Stacks(threading.local):
    """The calls that run now, on each thread.

    Backward, and with it recomputation, runs on threads of its own for every CUDA device.
    """

    def __init__(self) -> None:
        self.calls: list[Call] = []


class Calls:
    """Counts the calls of one training step."""

    def __init__(self, roots: frozenset[str] = frozenset({""})) -> None:
        self._latest: RootCall | None = None  # the one that began last, apart only if all are
        self.backward = BackwardPass()  # that began last
        self._roots = roots
        self._arrived: dict[str, RootCall] = {}  # in this backward pass, by root
        self._arrived_last: RootCall | None = None
        self._began: dict[tuple[str, bool], RootCall] = {}  # the last of each
        self._root_calls: Counter[tuple[int, bool]] = Counter()
        self._counts: dict[tuple[str, bool], dict[str, int]] = defaultdict(dict)
        self._made: dict[_Made, Call] = {}
        self._by_input: dict[_Input, list[Call]] = defaultdict(list)
        # Weak references, which keep addresses from being used for other storages.
        self._storages: list[StorageWeakRef] = []
        self._stacks = _Stacks()

    def enter(
        self,
        path: str,
        module: nn.Module,
        first_input: torch.Tensor | None,
        microbatch: int | None = None,
        *,
        keeps_graph: bool = True,
    ) -> Call:
        """The call that starts now; `microbatch` is its number where the framework says it."""
        stack = self._stacks.calls
        parent = stack[-1] if stack else None
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001  (no public way to ask)
            call = self._repeat(path, module, parent, first_input)
        else:
            at = self._at(path, module, parent, microbatch, apart=not keeps_graph)
            call = self._first(path, at, module, parent, first_input)
        stack.append(call)
        return call

    def latest(self) -> RootCall:
        """The microbatch that began last."""
        return self._latest or RootCall()

    def begin_backward(self, *, asked: bool = False) -> None:
        self.backward = BackwardPass(self.backward.number + 1, asked)
        self._arrived.clear()
        self._arrived_last = None

    def arrive(self, call: Call) -> None:
        """The gradient of something that this call took or returned is here."""
        self._arrived[call.at.root] = self._arrived_last = call.at

    def in_backward(self, root: str | None = None) -> RootCall:
        """The microbatch through which backward goes, of one root or of the one it came to last."""
        if root is None:
            return self._arrived_last or self.latest()
        return self._arrived.get(root) or self._began.get((root, False), RootCall(root))

    def leave(self) -> None:
        if stack := self._stacks.calls:
            stack.pop()

    def current(self) -> Call | None:
        stack = self._stacks.calls
        return stack[-1] if stack else None

    @property
    def called_paths(self) -> set[str]:
        return {key[0] for key in self._made}

    def _first(
        self,
        path: str,
        at: RootCall,
        module: nn.Module,
        parent: Call | None,
        first_input: torch.Tensor | None,
    ) -> Call:
        counts = self._counts[at.root, at.apart]
        call = Call(path, at, counts.get(path, 0), module, is_outermost=parent is None)
        counts[path] = call.number + 1
        if parent is not None:
            parent.children.setdefault(path, []).append(call.number)
        self._made[path, *at, call.number] = call
        self._remember(call, first_input)
        return call

    def _at(
        self,
        path: str,
        module: nn.Module,
        parent: Call | None,
        microbatch: int | None,
        *,
        apart: bool,
    ) -> RootCall:
        """The microbatch that a call belongs to, which it may begin."""
        root = root_of(path, self._roots)
        if parent is not None and parent.at.root == root:
            return parent.at
        began = self._began.get((root, apart))
        # Modules inside of a model that is not called itself are counted in one microbatch; those
        # that run apart have nothing that would tell where one ends.
        if path in self._roots or apart or began is None:
            nth = self._root_calls[id(module), apart]
            self._root_calls[id(module), apart] += 1
            began = RootCall(root, nth if microbatch is None else microbatch, apart)
            self._began[root, apart] = began
            self._counts[root, apart].clear()
        if not apart or self._latest is None or self._latest.apart:
            self._latest = began
        return began

    def _repeat(
        self, path: str, module: nn.Module, parent: Call | None, first_input: torch.Tensor | None
    ) -> Call:
        original = self._original(path, parent, first_input)
        if original is None:
            at = self.in_backward(root_of(path, self._roots))
            return Call(path, at, 0, module, recompute=True)
        original.recomputed = True
        self._remember(original, first_input)  # a region inside this one starts from it again
        return Call(path, original.at, original.number, module, recompute=True)

    def _original(
        self, path: str, parent: Call | None, first_input: torch.Tensor | None
    ) -> Call | None:
        if parent is not None and parent.recompute:
            repeated = self._made.get((parent.path, *parent.at, parent.number))
            made = repeated.children.get(path, []) if repeated else []
            again = parent.children.setdefault(path, [])
            nth = len(again)
            again.append(nth)
            if nth < len(made):
                return self._made[path, *parent.at, made[nth]]
        found = _by(path, first_input)
        calls = self._by_input.get(found[0], []) if found is not None else []
        # A region that is no module may give its first module an input that it computed again.
        calls = calls or [call for key, call in self._made.items() if key[0] == path]
        return max(calls, key=self._likelihood, default=None)

    def _likelihood(self, call: Call) -> tuple[bool, bool, int, int]:
        """How likely a recomputed region repeats this call; the largest is taken.

        Backward goes through one microbatch at a time, and through its regions in reverse.
        """
        in_backward = call.at == self._arrived.get(call.at.root)
        return in_backward, not call.recomputed, call.microbatch, call.number

    def _remember(self, call: Call, first_input: torch.Tensor | None) -> None:
        if (found := _by(call.path, first_input)) is not None:
            key, storage = found
            self._by_input[key].append(call)
            self._storages.append(storage)


def _by(path: str, first_input: torch.Tensor | None) -> tuple[_Input, StorageWeakRef] | None:
    """What a call is found by, for as long as the weak reference is kept."""
    if first_input is None:
        return None
    try:
        storage = StorageWeakRef(first_input.untyped_storage())
        return (path, storage.cdata, int(first_input.storage_offset())), storage
    except RuntimeError:  # sparse tensors have no storage
        return None
