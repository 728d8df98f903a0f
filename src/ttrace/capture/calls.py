"""Which call of which microbatch is this? Also during recomputation.

A call of the root module starts a microbatch. Inside it the calls of every module are counted. A
recomputed forward (activation checkpointing runs it inside backward) is matched with the call that
it repeats: the outermost module of a recomputed region by the storage of its input, which the
checkpoint kept alive, and everything below by its place inside that call.
"""

from __future__ import annotations

import threading
from collections import Counter, defaultdict
from dataclasses import dataclass, field

import torch


@dataclass(slots=True)
class Call:
    """One call of one module; `children` lists the call numbers of every module called inside."""

    path: str
    microbatch: int
    number: int
    recompute: bool = False
    children: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))
    recomputed: bool = False


class Calls:
    """Counts the calls of one training step."""

    def __init__(self) -> None:
        self.microbatch = 0
        self._root_calls = 0
        self._counts: Counter[str] = Counter()
        self._made: dict[tuple[str, int, int], Call] = {}
        self._by_input: dict[tuple[str, int], Call] = {}
        # Backward, and with it recomputation, runs on threads of its own for every CUDA device.
        self._stacks = threading.local()

    def enter(self, path: str, first_input: torch.Tensor | None) -> Call:
        stack = self._stack()
        parent = stack[-1] if stack else None
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001  (no public way to ask)
            call = self._repeat(path, parent, first_input)
        else:
            call = self._first(path, parent, first_input)
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

    def _first(self, path: str, parent: Call | None, first_input: torch.Tensor | None) -> Call:
        if parent is None and path == "":
            self.microbatch = self._root_calls
            self._root_calls += 1
            self._counts.clear()
        call = Call(path, self.microbatch, self._counts[path])
        self._counts[path] += 1
        if parent is not None:
            parent.children[path].append(call.number)
        self._made[path, call.microbatch, call.number] = call
        if (pointer := _pointer(first_input)) is not None:
            self._by_input[path, pointer] = call
        return call

    def _repeat(self, path: str, parent: Call | None, first_input: torch.Tensor | None) -> Call:
        original = self._original(path, parent, first_input)
        if original is None:
            return Call(path, self.microbatch, 0, recompute=True)
        original.recomputed = True
        return Call(path, original.microbatch, original.number, recompute=True)

    def _original(
        self, path: str, parent: Call | None, first_input: torch.Tensor | None
    ) -> Call | None:
        if parent is not None:
            repeated = self._made.get((parent.path, parent.microbatch, parent.number))
            made = repeated.children.get(path, []) if repeated else []
            nth = len(parent.children[path])
            parent.children[path].append(nth)
            if nth < len(made):
                return self._made[path, parent.microbatch, made[nth]]
        pointer = _pointer(first_input)
        if pointer is not None and (path, pointer) in self._by_input:
            return self._by_input[path, pointer]
        # A region that is no module: its first module got a recomputed input. Backward runs the
        # regions in reverse, so the latest call not yet repeated is the one.
        open_calls = [
            call for key, call in self._made.items() if key[0] == path and not call.recomputed
        ]
        return open_calls[-1] if open_calls else None

    def _stack(self) -> list[Call]:
        if not hasattr(self._stacks, "calls"):
            self._stacks.calls = []
        return self._stacks.calls


def _pointer(tensor: torch.Tensor | None) -> int | None:
    return None if tensor is None or tensor.numel() == 0 else tensor.data_ptr()
