"""Which module runs now, forward or backward, of those that a run is asked about.

Forward is what lies between two hooks. Backward runs without its module: but torch numbers the
nodes of its graph as it makes them, so the nodes of a module are those whose numbers were given
while it ran, and backward says which node it is at.
"""

from __future__ import annotations

import threading
from bisect import bisect_right
from collections.abc import Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

import torch
from torch import nn

from ttrace.adapters.base import Adapter
from ttrace.capture.guard import Guard, module_hook


class _Running(NamedTuple):
    path: str
    first: int  # number of a node that is made next


class _OfThread(threading.local):
    def __init__(self) -> None:
        self.running: list[_Running] = []


class Regions:
    """Watches the modules whose paths match one of these patterns."""

    def __init__(self, adapter: Adapter, patterns: Sequence[str], guard: Guard) -> None:
        self._here = _OfThread()
        # Of calls that have ended, which is the order of their ends.
        self._ends: list[int] = []
        self._ended: list[_Running] = []
        for path, module in adapter.modules():
            if any(fnmatchcase(path, pattern) for pattern in patterns):
                self._watch(path, module, guard)

    def current(self) -> str | None:
        """The innermost of these modules that runs now, on this thread; None outside of all."""
        if running := self._here.running:
            return running[-1].path
        node: Any = torch._C._current_autograd_node()  # noqa: SLF001  (no public way to ask)
        return None if node is None else self._of_node(node._sequence_nr())  # noqa: SLF001

    def _of_node(self, number: int) -> str | None:
        """Of the calls around it, the one that ended first."""
        begin = bisect_right(self._ends, number)
        around = (each for each in self._ended[begin:] if each.first <= number)
        return next((each.path for each in around), None)

    def _watch(self, path: str, module: nn.Module, guard: Guard) -> None:
        def enter(*_: Any) -> None:
            self._here.running.append(_Running(path, _next_node()))

        def leave(*_: Any) -> None:
            if running := self._here.running:
                self._ended.append(running.pop())
                self._ends.append(_next_node())

        def hook(work: Any) -> Any:
            return module_hook(guard, path, work)

        put = guard.handles.add
        put(module.register_forward_pre_hook(hook(enter), prepend=True))
        put(module.register_forward_hook(hook(leave), always_call=True))


def _next_node() -> int:
    return int(torch.autograd._get_sequence_nr())  # type: ignore[attr-defined]  # noqa: SLF001
