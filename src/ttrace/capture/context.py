"""The context of a step: all that record it share its number, its calls and its arrivals."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any, TypeVar

import torch

from ttrace.adapters.base import Adapter
from ttrace.capture.calls import BackwardPass, Call, Calls
from ttrace.capture.code import CodePlaces
from ttrace.capture.recorder import Recorder
from ttrace.core.ids import Kind, TensorId, root_of, roots_of

Gradient = tuple[TensorId, int]  # which one, of which microbatch
_T = TypeVar("_T")


class Arrivals:
    """Counts the gradients that hooks wait for, and those that came."""

    def __init__(self) -> None:
        self.expected = 0
        self.fired = 0
        self.unfired: list[str] = []
        # By which backward passes each came; None: it did not, empty: nobody waits for it.
        self._came: dict[Gradient, tuple[BackwardPass, ...] | None] = {}

    def is_known(self, gradient: Gradient) -> bool:
        return gradient in self._came

    def came(self, gradient: Gradient) -> bool:
        return self._came.get(gradient) is not None

    def expect(self, gradient: Gradient) -> None:
        self.expected += 1
        self._came[gradient] = None

    def arrive(self, gradient: Gradient, by: BackwardPass) -> int:
        """It came by this backward pass; by how many of the same kind it had come before."""
        passes = self._came.get(gradient) or ()
        if by not in passes:
            self.fired += 1
            self.expected += len(passes) > 0
            passes = self._came[gradient] = (*passes, by)
        if len(passes) == 1:
            return 0
        return [each for each in passes if each.asked == by.asked].index(by)

    def came_by(self, gradient: Gradient, by: BackwardPass) -> bool:
        return by in (self._came.get(gradient) or ())

    def settle(self, gradient: Gradient) -> None:
        """Wait no longer: this gradient is stored under another id, which is waited for already."""
        self._came[gradient] = self._came.get(gradient) or ()

    def end(self, *, is_told: bool = True) -> None:
        """The step is over; of one that is let pass nothing is told."""
        if is_told:
            self.unfired += [str(id_) for (id_, _), came in self._came.items() if came is None]
        self._came.clear()


class StepContext:
    """The step that is recorded now; outside of a step `number` is None and nothing is recorded."""

    def __init__(self, adapter: Adapter, recorder: Recorder) -> None:
        self.adapter = adapter
        self.recorder = recorder
        self.guard = recorder.guard
        self.number: int | None = None
        self._roots = roots_of(path for path, _ in adapter.modules())
        self.calls = Calls(self._roots)
        self.arrivals = Arrivals()
        self.places = CodePlaces(adapter)
        self.notes = adapter.notes  # sentences for a person, in the summary of the trace

    def begin(self, number: int) -> None:
        self.number = number
        self.calls = Calls(self._roots)

    def switch_off(self) -> None:
        """Record nothing more of this step, if there is one."""
        self.guard.is_off |= self.number is not None
        self.number = None

    def end(self) -> None:
        self.number = None
        self.guard.is_off = False
        self.arrivals.end(is_told=not self.recorder.is_muted)

    @contextmanager
    def paused(self) -> Iterator[None]:
        """While open nothing is recorded, as between steps."""
        number, self.number = self.number, None
        try:
            yield
        finally:
            self.number = None if self.guard.is_off else number

    def root_of(self, module: str) -> str:
        return root_of(module, self._roots)

    def id(self, module: str, kind: Kind, slot: str = "", *, turn: int = 0) -> TensorId:
        assert self.number is not None
        return TensorId(step=self.number, module=module, kind=kind, slot=slot, turn=turn)

    def id_in(self, call: Call, kind: Kind, slot: str) -> TensorId:
        """Of something that a call takes, returns or makes."""
        assert self.number is not None
        return TensorId(
            step=self.number,
            module=call.path,
            kind=kind,
            slot=slot,
            call=call.number,
            apart=call.at.apart,
        )

    def id_arrived(self, gradient: Gradient) -> TensorId:
        """Of a gradient that came by the backward pass that runs."""
        by = self.calls.backward
        turn = self.arrivals.arrive(gradient, by)
        return replace(gradient[0], turn=turn, asked=by.asked) if turn or by.asked else gradient[0]

    def is_recording(self) -> bool:
        return self.number is not None and not self.adapter.is_rehearsal()

    def recording(self, where: object, work: Callable[..., _T], *given: Any) -> _T | None:
        """What `work` returns, run outside autograd; None between steps and after a fault."""
        if not self.is_recording():
            return None
        return outside_autograd(self.guard.recording, where, work, *given)


def outside_autograd(work: Callable[..., _T], *given: Any) -> _T:
    """What `work` returns, run as under torch.no_grad(), at a fifth of its cost."""
    if not torch.is_grad_enabled():
        return work(*given)
    torch._C._set_grad_enabled(False)  # noqa: FBT003, SLF001  (as torch.no_grad does)
    try:
        return work(*given)
    finally:
        torch._C._set_grad_enabled(True)  # noqa: FBT003, SLF001
