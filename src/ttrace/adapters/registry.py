"""Which adapter fits a model? Frameworks are found by entry points of the group `ttrace.adapters`.

A framework is one package with two functions, and one line in its pyproject.toml:

    [project.entry-points."ttrace.adapters"]
    engine = "ttrace_engine"            # has matches(model) -> bool and make(model) -> Adapter

`matches` must be cheap and import nothing: who uses the framework has imported it. Installed ones
are asked before those that TTrace brings, native PyTorch last: it takes every model. An entry
point that cannot be loaded or asked is skipped, and the notes of the run name it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from importlib import metadata
from typing import Any, Protocol

from ttrace.adapters import deepspeed, megatron, native
from ttrace.adapters.base import Adapter
from ttrace.errors import UsageError

_GROUP = "ttrace.adapters"


class Framework(Protocol):
    """What an entry point names: a package, or any object, with these two functions."""

    def matches(self, model: Any, /) -> bool:
        """Whether the model, as a script passes it to `attach`, is one of this framework's."""

    def make(self, model: Any, /) -> Adapter:
        """The adapter for a model that matches."""


Named = tuple[str, Framework]
# In the order in which they are asked. Also without installed metadata, from a source tree.
_BUILT_IN: tuple[Framework, ...] = (deepspeed, megatron, native)
_OWN_PACKAGES = frozenset(framework.__name__ for framework in (deepspeed, megatron, native))
_REGISTERED: ContextVar[tuple[Named, ...]] = ContextVar("registered", default=())


def find_adapter(model: Any) -> Adapter:
    """The adapter for this model; native PyTorch serves every plain module."""
    notes: list[str] = []
    others = [*_installed(notes), *_REGISTERED.get()]
    fitting = [(name, other) for name, other in others if _fits(name, other, model, notes)]
    if len(fitting) > 1:
        names = " and ".join(name for name, _ in fitting)
        raise UsageError(
            f"the adapters {names} all say that this model is theirs; uninstall all but one"
        )
    built_in = [framework for framework in _BUILT_IN if framework.matches(model)]
    chosen = [*(other for _, other in fitting), *built_in][0]
    adapter = chosen.make(model)
    adapter.notes += notes
    return adapter


@contextmanager
def registered(name: str, framework: Framework) -> Iterator[None]:
    """While open, a framework that is not installed is found as if it were: for tests."""
    token = _REGISTERED.set((*_REGISTERED.get(), (name, framework)))
    try:
        yield
    finally:
        _REGISTERED.reset(token)


def _installed(notes: list[str]) -> Iterator[Named]:
    """Frameworks of other packages, by the name of their entry point and what it names."""
    found = {(point.name, point.value): point for point in metadata.entry_points(group=_GROUP)}
    for (name, value), point in sorted(found.items()):
        if value in _OWN_PACKAGES:
            continue
        name = f"{name} ({value})"
        try:
            framework = point.load()
        except Exception as error:  # noqa: BLE001  (another package's fault must not end the run)
            notes.append(_skipped(name, error))
        else:
            yield name, framework


def _fits(name: str, framework: Framework, model: Any, notes: list[str]) -> bool:
    try:
        return bool(framework.matches(model))
    except Exception as error:  # noqa: BLE001  (another package's fault must not end the run)
        notes.append(_skipped(name, error))
        return False


def _skipped(name: str, error: Exception) -> str:
    return f"the adapter {name} was skipped because it failed: {type(error).__name__}: {error}"
