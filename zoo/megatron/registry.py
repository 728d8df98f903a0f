"""Silent bugs of real training frameworks, planted in the installed megatron-core from outside.

Each says the layout it needs and what must be named. `planted(name)` holds it; the correct twin
is the same layout without it (or with the `twin` that does the same thing right).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

from ttrace.adapters.patching import patched, replaced

Plant = Callable[[ExitStack], None]
Place = tuple[str, str]  # where, and which part


@dataclass(frozen=True, slots=True, kw_only=True)
class Bug:
    """A planted mistake: where it is, and the culprit that a report must name."""

    name: str
    source: str  # where it was real
    ranks: int
    layout: Mapping[str, Any] = field(default_factory=lambda: MappingProxyType({}))
    expected: frozenset[Place]  # what is itself wrong, all of it
    plant: Plant
    twin: Plant | None = None
    twin_in_reference: bool = False  # the reference does the same thing, right
    mistake: str = ""  # the flag of the layout that is itself the bug: the twin goes without
    attempts: int = 1  # a race is tried again until it shows
    in_paper: bool = False

    @property
    def correct_layout(self) -> dict[str, Any]:
        return {name: value for name, value in self.layout.items() if name != self.mistake}


BUGS: dict[str, Bug] = {}


def bug(
    source: str,
    ranks: int,
    where: str | tuple[str, ...],
    part: str,
    *,
    also: tuple[Place, ...] = (),
    in_paper: bool = False,
    twin: Plant | None = None,
    twin_in_reference: bool = False,
    mistake: str = "",
    attempts: int = 1,
    **layout: Any,
) -> Callable[[Plant], Plant]:
    """Register a function that plants a bug; its name is the bug's.

    `where` and `part` must be named, and `also` these. They follow from what is planted, not
    from what a run has named.
    """

    def register(plant: Plant) -> Plant:
        name = plant.__name__.replace("_", "-")
        places = (where,) if isinstance(where, str) else where
        BUGS[name] = Bug(
            name=name,
            source=source,
            ranks=ranks,
            layout=MappingProxyType(layout),
            expected=frozenset((place, part) for place in places).union(also),
            plant=plant,
            twin=twin,
            twin_in_reference=twin_in_reference,
            mistake=mistake,
            attempts=attempts,
            in_paper=in_paper,
        )
        return plant

    return register


@contextmanager
def planted(name: str) -> Iterator[None]:
    """Hold the bug of this name; with `twin:` before it, what does the same thing right."""
    all_bugs()
    plain = name.removeprefix("twin:")
    chosen = BUGS[plain].twin if name != plain else BUGS[plain].plant
    with ExitStack() as stack:
        if chosen is not None:
            chosen(stack)
        yield


def all_bugs() -> dict[str, Bug]:
    from zoo.megatron import paper, step, upstream  # noqa: F401

    return BUGS


def replace(stack: ExitStack, owner: Any, name: str, value: Any) -> None:
    """Set an attribute until the stack is closed."""
    getattr(owner, name)  # a bug is planted in what is there
    stack.enter_context(replaced(owner, name, value))


def wrap(stack: ExitStack, owner: Any, name: str, around: Callable[..., Any]) -> None:
    """Replace a function by `around(original, *args, **kwargs)`."""
    stack.enter_context(patched(owner, name, around))


def once_built(stack: ExitStack, change: Callable[[Any, dict[str, Any]], None]) -> None:
    """Call `change(ddp, modules by canonical path)` for every model chunk when it is wrapped."""
    from megatron.core.distributed import DistributedDataParallel

    from ttrace.adapters.megatron.paths import walk

    def init(original: Callable[..., None], self: Any, *args: Any, **kwargs: Any) -> None:
        original(self, *args, **kwargs)
        change(self, dict(walk([self])))

    wrap(stack, DistributedDataParallel, "__init__", init)


__all__ = ["BUGS", "Bug", "all_bugs", "bug", "once_built", "planted", "replace", "wrap"]
