"""The promise that a context of an adapter leaves no trace in the framework, whatever happens."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from types import BuiltinFunctionType, FunctionType, MethodType, ModuleType
from typing import Any

from ttrace.adapters.base import Adapter

Snapshot = dict[tuple[str, str], Any]
_FUNCTIONS = {FunctionType, BuiltinFunctionType, MethodType, classmethod, property, staticmethod}


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
            found |= {(name, key): value for key, value in _callables(module)}
    classes = {value for value in found.values() if issubclass(type(value), type)}
    for kind in classes:
        owner = f"{kind.__module__}.{kind.__qualname__}"
        found |= {(owner, key): value for key, value in _callables(kind)}
    for path, part in adapter.modules():
        owner = f"the module {path!r}"
        found |= {(owner, key): value for key, value in _callables(part)}
        hooks = {key: len(value) for key, value in vars(part).items() if key.endswith("_hooks")}
        found |= {(owner, key): number for key, number in hooks.items()}
    return found


def _callables(owner: Any) -> Iterator[tuple[str, Any]]:
    for key, value in list(vars(owner).items()):
        kind = type(value)  # not isinstance: deprecated objects warn when they are asked
        if kind in _FUNCTIONS or issubclass(kind, type):
            yield key, value


def _changed(before: Snapshot, after: Snapshot) -> Iterator[tuple[str, str]]:
    """A module or class that was imported meanwhile is no change."""
    owners = {owner for owner, _ in before}
    for key in {**before, **after}:
        if key[0] in owners and before.get(key) is not after.get(key):
            yield key
