"""The tracer as a training script sees it, and the one of a run that is not traced."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol
from weakref import WeakSet

import torch
from torch import nn

from ttrace.capture.guard import Around, Guard, entry
from ttrace.core.simulated import OfRank


class Tracer(Protocol):
    """What `ttrace.attach` returns."""

    enabled: bool

    def step(self) -> AbstractContextManager[None]:
        """Context manager around one training step."""

    def begin(self) -> None:
        """Enter a training step, where somebody else calls the loop; nothing inside of one."""

    def end(self) -> None:
        """Leave the step that `begin` entered; nothing outside of one."""

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        """Say which tensor is the loss of this microbatch, where tracing finds another."""

    def as_call(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        """The method of a model as a call of it, where a trainer calls that and not the model."""


class Waiting(Protocol):
    """A tracer whose step was left, and is open for further microbatches or its update."""

    def finish(self) -> None:
        """Nothing comes any more."""


_WAITING: OfRank[WeakSet[Waiting]] = OfRank(WeakSet)
waiting_tracers = _WAITING.get


def finish_steps() -> None:
    """End all steps that wait, as the end of a process does, where one goes on to other work."""
    for tracer in tuple(waiting_tracers()):
        tracer.finish()


@dataclass(frozen=True, slots=True, kw_only=True)
class Outside:
    """What to call around an update that a script makes after it has left `tracer.step()`."""

    begin: Callable[[], bool]  # whether it is that of a step which waits for it
    end: Callable[[], None]


class Attached(NamedTuple):
    """What a script gave to `attach`."""

    model: Any
    optimizers: Sequence[Any]

    def and_then(self, model: Any, optimizers: Sequence[Any]) -> Attached:
        """Two calls as one would give them: models by name where either has names."""
        parts = [*_parts(self.model), *_parts(model)]
        named = {name or str(index): part for index, (name, part) in enumerate(parts)}
        has_names = any(name for name, _ in parts)
        together = named if has_names else list(named.values())
        return Attached(together, [*self.optimizers, *optimizers])


def _parts(model: Any) -> list[tuple[str, Any]]:
    if isinstance(model, Mapping):
        return [(str(name), part) for name, part in model.items()]
    return [("", part) for part in model] if isinstance(model, Sequence) else [("", model)]


class OffTracer:
    """The tracer of a run that was not started for tracing: no hook, no file, no cost."""

    enabled = False

    @contextmanager
    def step(self) -> Iterator[None]:
        yield

    def begin(self) -> None:
        return

    def end(self) -> None:
        return

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def as_call(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        return method


class SteppingTracer(ABC):
    """Enters and leaves steps; a fault of ours in that ends tracing, and not the run."""

    guard: Guard
    successor: Tracer | None = None  # that does what this one was to
    _is_inside = False  # of `with tracer.step()`, also after a fault

    @entry("the begin of a step", lambda *_: nullcontext(), gives_up=True)
    def step(self) -> AbstractContextManager[None]:
        """Around a step, or around each of its microbatches: it ends with the optimizer's step."""
        if self.successor is not None:
            return self.successor.step()
        return Around(enter=self._try_enter, leave=self.end, abandon=self._abandon)

    @entry("the begin of a step", gives_up=True)
    def begin(self) -> None:
        if self.successor is not None:
            self.successor.begin()
        else:
            self._try_enter()

    @entry("the end of a step", gives_up=True)
    def end(self) -> None:
        if self.successor is not None:
            self.successor.end()
        elif self._is_inside:
            self._leave()

    @abstractmethod
    def _try_enter(self) -> bool:
        """Whether that entered a step, which somebody is to leave."""

    @abstractmethod
    def _leave(self) -> None:
        """Leave the step that was entered."""

    @abstractmethod
    def _abandon(self) -> None:
        """Leave a step that raised."""

    def __reduce__(self) -> tuple[type[OffTracer], tuple[()]]:
        """A copy of what holds a tracer, here or in another process, is not traced."""
        return OffTracer, ()
