"""The tracer of a traced run: what happens around one training step, in order."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, nullcontext
from functools import partial
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import Adapter
from ttrace.capture.boundary import Boundary
from ttrace.capture.buffers import Buffers
from ttrace.capture.context import StepContext
from ttrace.capture.hooks import ModuleHooks
from ttrace.capture.loss import watch_backward
from ttrace.capture.manifest import describe_rank
from ttrace.capture.noise import Noise
from ttrace.capture.overwrite import Overwriter
from ttrace.capture.passes import BackwardPasses
from ttrace.capture.recorder import Recorder
from ttrace.capture.regroup import Regrouping
from ttrace.capture.settings import Settings
from ttrace.capture.tapping import Tapping
from ttrace.capture.tracer import WAITING, Attached, Outside
from ttrace.capture.update import Update
from ttrace.capture.watching import Watching
from ttrace.capture.weights import WeightHooks
from ttrace.core.ids import blocks_of
from ttrace.core.record import Summary
from ttrace.trace.payload import FULL, payload_named
from ttrace.trace.plan import IsolationPlan, plan_file
from ttrace.trace.writer import TraceWriter


class RecordingTracer:
    """Records the first steps, or later ones, then takes its hooks away and closes the trace.

    Steps before those are made like others, with noise where that is asked for, and not recorded.
    """

    enabled = True

    def __init__(self, adapter: Adapter, attached: Attached, settings: Settings) -> None:
        self.attached = attached
        self.successor: RecordingTracer | None = None  # that records what this one was to
        self._folder = settings.folder
        info = describe_rank(adapter, settings)
        payload = FULL if settings.payload is None else payload_named(settings.payload)
        writer = TraceWriter(settings.folder, info)
        self._recorder = Recorder(adapter, writer, info.rank, payload)
        self._context = context = StepContext(adapter, self._recorder)
        noise = None
        if settings.noise_seed is not None:
            noise = Noise(settings.noise_seed, adapter, other_kernels=settings.other_kernels)
        self._regrouping = None if noise is None else Regrouping(noise, _shapes(adapter))
        self._overwriter = overwriter = None
        modules = blocks_of(path for path, _ in adapter.modules()) if settings.coarse else None
        if settings.plan is not None:
            plan = IsolationPlan.read(plan_file(settings.plan, info.rank))
            self._overwriter = overwriter = Overwriter(plan, adapter, noise)
            modules = plan.modules
        taps = settings.tap or overwriter is not None
        self._boundary: Boundary = (
            Tapping(context, overwriter, modules) if taps else Watching(context, noise)
        )
        self._buffers = Buffers(adapter)
        with ExitStack() as undo:  # where one of them cannot be made
            undo.callback(self._recorder.withdraw)
            self._hooks = ModuleHooks(context, self._boundary)
            undo.callback(self._hooks.remove)
            self._weights = WeightHooks(context)
            undo.callback(self._weights.remove)
            self._backward = BackwardPasses(context, self._weights)
            self._update = Update(
                context,
                self._weights,
                attached.optimizers,
                overwriter=overwriter,
                regrouping=self._regrouping,
                outside=Outside(begin=self._resume, end=self._pause),
            )
            undo.pop_all()
        self._watched = ExitStack()  # what is held open during a step
        self._steps, self._skip = settings.steps, settings.skip
        self._done = 0
        self._began = 0.0
        self._took: tuple[float, float] = 0.0, 0.0  # the last step, and recording it
        self._open: int | None = None  # the step that waits for more microbatches, or its update
        self._closed = False
        # Also in children of multiprocessing, where atexit does not run.
        self._at_exit = Finalize(None, self._close, exitpriority=0)

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around a step, or around each of its microbatches: it ends with the optimizer's step."""
        if self.successor is not None:
            with self.successor.step():
                yield
            return
        if self._is_inside:
            yield
            return
        self.begin()
        try:
            yield
        except BaseException:
            self._unharmed("leaving a step that raised", self._abandon)
            raise
        self.end()

    def begin(self) -> None:
        if self.successor is not None:
            self.successor.begin()
        elif not (self._closed or self._is_inside):
            self._unharmed("the begin of a step", self._enter)

    def end(self) -> None:
        if self.successor is not None:
            self.successor.end()
        elif self._is_inside:
            self._unharmed("the end of a step", self._leave)

    def finish(self) -> None:
        if self._resume():
            self._end()

    def can_make_room(self, settings: Settings) -> bool:
        """Whether another tracer may take its place in a trace: not once a step has begun."""
        is_used = self._closed or self._is_inside or self._done or self._open is not None
        return not is_used and settings.folder == self._folder

    def withdraw(self) -> None:
        """Leave nothing behind."""
        self._closed = True
        self._at_exit.cancel()
        self._take_hooks_away()
        self._recorder.withdraw()

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        if self.successor is not None:
            return self.successor.loss(value)
        if self._is_inside:
            self._backward.name_loss(value)
        return value

    def as_call(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        if self.successor is not None:
            return self.successor.as_call(module, method)
        called = partial(self._hooks.as_call, module, method)
        return self._recorder.guarded("a method that is called as its module", called) or method

    @property
    def _is_inside(self) -> bool:
        return self._context.number is not None

    def _enter(self) -> None:
        if self._open is not None and not self._update.is_awaited:
            self.finish()
        if self._closed:
            return
        if not self._resume():
            self._begin()
        adapter = self._context.adapter
        for watching in (
            adapter.tracking(),
            nullcontext() if self._regrouping is None else self._regrouping,
            watch_backward(self._backward.around, self._backward.around_asked),
            adapter.watch_backward(self._backward.around),
            self._update.watching(),
            adapter.watch_losses(self._hooks.aside),
        ):
            self._watched.enter_context(watching)

    def _leave(self) -> None:
        self._watched.close()
        if self._update.may_come:
            self._pause()
        else:
            self._end()

    def _unharmed(self, where: str, work: Callable[[], None]) -> None:
        """Do our own part of a step; after a fault in it the run goes on, and is traced no more."""
        try:
            work()
        except Exception as error:  # noqa: BLE001  (a fault of ours must not reach the run)
            self._recorder.fault(f"{where}, so nothing more is", error)
            self._recorder.guarded(where, self._give_up)

    def _begin(self) -> None:
        self._began, self._recorder.seconds = time.perf_counter(), 0.0
        self._recorder.is_muted = self._done < self._skip
        self._context.begin(self._done)
        self._backward.begin()
        self._recorder.guarded("the parameters' hooks", self._weights.begin)
        self._recorder.guarded("the buffers", self._buffers.begin)
        self._update.begin()

    def _end(self) -> None:
        # What the last step that is let pass leaves behind is where the first recorded one starts.
        self._recorder.is_muted = self._done + 1 < self._skip
        self._update.end()
        self._recorder.guarded("the buffers", self._take_buffers)
        self._forget()
        self._recorder.end_step()
        self._took = time.perf_counter() - self._began, self._recorder.seconds
        self._done += 1
        if self._done >= self._skip + self._steps:
            self._close()

    def _pause(self) -> None:
        """Leave a step, from whose gradients nobody has updated yet; or end it after that."""
        self._open, self._context.number = self._context.number, None
        WAITING.add(self)
        if self._update.is_complete:
            self.finish()

    def _resume(self) -> bool:
        """Whether a step was left open, and goes on."""
        if self._open is None:
            return False
        self._context.number, self._open = self._open, None
        WAITING.discard(self)
        return True

    def _abandon(self) -> None:
        """Leave a step that raised; its trace gets no end, so that it never looks whole."""
        self._recorder.guarded("what was watched", self._watched.close)
        self._close()
        self._forget()

    def _give_up(self) -> None:
        """End the trace with the steps that it has."""
        self._recorder.guarded("what was watched", self._watched.close)
        self._forget()
        self._close()

    def _forget(self) -> None:
        self._context.end()
        self._boundary.end()
        self._weights.end()

    def _take_buffers(self) -> None:
        self._buffers.record(self._context, self._overwriter)

    def _take_hooks_away(self) -> None:
        self._hooks.remove()
        self._weights.remove()
        self._update.remove()

    def _close(self) -> None:
        if not self._closed and self._open is not None:
            self.finish()  # which may close it
        if self._closed:
            return
        self._closed = True
        self._at_exit.cancel()  # it would keep the model, and its process groups, alive
        self._take_hooks_away()
        if self._is_inside:
            return  # the process ends in the middle of a step: the trace is not whole
        if self._regrouping is not None and self._done:
            self._context.notes += self._regrouping.notes(self._context.adapter.roots)
        arrivals = self._context.arrivals
        self._recorder.close(
            Summary(
                steps=max(0, self._done - self._skip),
                hooks_expected=arrivals.expected,
                hooks_fired=arrivals.fired,
                unfired=tuple(arrivals.unfired),
                never_called=self._hooks.never_called() if self._done else (),
                notes=tuple(self._context.notes),
                updated_by_hand=self._update.by_hand,
                hyperparameters=self._update.hyperparameters.found(),
                asked=self._steps,
                wrappers=_wrappers(self._context.adapter),
                optimizers=tuple(self._update.stepped),
                seconds=self._took[0],
                recording_seconds=self._took[1],
                code=self._context.places.code(),
            )
        )


def _wrappers(adapter: Adapter) -> tuple[str, ...]:
    """Classes that stand around the modules that people wrote, or in place of theirs."""
    written = {id(module): adapter.written_class(module) for _, module in adapter.modules()}
    met = (module for root in adapter.roots for module in root.modules())
    found = (type(each) for each in met if written.get(id(each)) is not type(each))
    return tuple(dict.fromkeys(kind.__qualname__ for kind in found))


def _shapes(adapter: Adapter) -> Iterable[torch.Size]:
    """Of what this rank holds of each parameter."""
    return (adapter.to_local(parameter.tensor)[0].shape for parameter in adapter.parameters())
