"""The tracer of a traced run: what happens around one training step, in order."""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from multiprocessing.util import Finalize
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import Adapter
from ttrace.adapters.patching import guarding
from ttrace.capture.backward import watch_backward
from ttrace.capture.guard import Guard, entry
from ttrace.capture.instruments import Instruments, seen_by
from ttrace.capture.manifest import wrappers_of
from ttrace.capture.settings import Settings
from ttrace.capture.tracer import Attached, Outside, SteppingTracer, waiting_tracers
from ttrace.core.record import Summary

# Chosen: more objects than the records of a step of a large model are; cycles of the run's own are
# still collected after as many.
_OBJECTS = 200_000


@contextmanager
def fewer_collections() -> Iterator[None]:
    """While open, Python collects garbage after many more new objects than before, if it did.

    Recording keeps tens of thousands of small objects until a step is over. Python takes them for a
    reason to look through all objects of the process, again and again: half of what recording took.
    """
    before = gc.get_threshold()
    if not 0 < before[0] < _OBJECTS:  # never, or seldom enough
        yield
        return
    during = (_OBJECTS, *before[1:])
    gc.set_threshold(*during)
    try:
        yield
    finally:
        if gc.get_threshold() == during:  # else the run has its own ideas by now
            gc.set_threshold(*before)


class RecordingTracer(SteppingTracer):
    """Records the first steps, or later ones, then takes its hooks away and closes the trace.

    Steps before those are made like others, with noise where that is asked for, and not recorded.
    """

    enabled = True

    def __init__(
        self, adapter: Adapter, attached: Attached, settings: Settings, guard: Guard | None = None
    ) -> None:
        self.attached, self._folder = attached, settings.folder
        outside = Outside(begin=self._resume, end=self._pause)
        self.guard = guard = guard or Guard()
        made = Instruments(adapter, attached, settings, outside, guard)
        self._context, self._recorder = made.context, made.recorder
        self._modes, self._overwriter = made.modes, made.overwriter
        self._boundary, self._buffers = made.boundary, made.buffers
        self._hooks, self._weights = made.hooks, made.weights
        self._backward, self._update = made.backward, made.update
        guard.switch_off, guard.give_up = self._switch_off, self._give_up
        self._watched = ExitStack()  # what is held open during a step
        self._schedule, earlier = settings.schedule, made.earlier_steps
        self._max_bytes = settings.max_bytes
        self._first = self._done = earlier[-1] + 1 if earlier else 0  # the number of the next step
        self._recorded = len(earlier)
        self._began, self._took = 0.0, 0.0  # of the last step
        self._open: int | None = None  # the step that waits for more microbatches, or its update
        self._closed = False
        # Also in children of multiprocessing, where atexit does not run.
        self._at_exit = Finalize(None, self.close, exitpriority=0)

    @entry("the end of a step", gives_up=True)
    def finish(self) -> None:
        if self._resume():
            self._end()

    def can_make_room(self, settings: Settings) -> bool:
        """Whether another tracer may take its place in a trace: not once a step has begun."""
        is_open = self._is_inside or self._open is not None
        return (
            not (self._closed or is_open or self._done > self._first)
            and settings.folder == self._folder
        )

    def withdraw(self) -> None:
        """Leave nothing behind."""
        self._closed = True
        try:
            self._let_go()
            self._recorder.withdraw()
        except Exception:
            self._give_up()
            raise

    @entry("a loss that was named", lambda _, value: value)
    def loss(self, value: torch.Tensor) -> torch.Tensor:
        if self.successor is not None:
            return self.successor.loss(value)
        if self._is_inside:
            self._backward.name_loss(value)
        return value

    @entry("a method that is called as its module", lambda _, __, method: method)
    def as_call(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        if self.successor is not None:
            return self.successor.as_call(module, method)
        return self._hooks.as_call(module, method)

    @entry("the begin of a step", lambda *_: False, gives_up=True)
    def _try_enter(self) -> bool:
        if not (self._closed or self._is_inside):
            self._enter()
            return self._is_inside
        return False

    def _enter(self) -> None:
        if self._open is not None and not self._update.is_awaited:
            self.finish()
        if self.guard.is_off:  # in the update of a step that was left
            self._end()
        if self._context.number is not None:  # such an update raised
            self._abandon()
        if self._closed:
            return
        self._is_inside = True
        if not self._resume():
            self._begin()
        adapter, records = self._context.adapter, self._schedule.records(self._done)
        with guarding(self.guard.harmed):
            for watching in (
                fewer_collections(),
                adapter.tracking(),
                *(mode for mode in self._modes if mode.is_needed(records=records)),
                watch_backward(self._backward.around, self._backward.around_asked),
                adapter.watch_backward(self._backward.around),
                self._update.watching(),
                adapter.watch_losses(self._hooks.aside),
            ):
                self._watched.enter_context(watching)

    def _leave(self) -> None:
        self._watched.close()
        self._is_inside = False
        if self._context.number is not None and self._update.may_come:
            self._pause()
        else:
            self._end()

    def _begin(self) -> None:
        self._began = time.perf_counter()
        self._recorder.begin_step()
        self._recorder.is_muted = not self._schedule.records(self._done)
        self._context.begin(self._done)
        self._backward.begin()
        self.guard.recording("the parameters' hooks", self._weights.begin)
        self.guard.recording("the buffers", self._buffers.begin)
        self._update.begin()

    @fewer_collections()
    def _end(self) -> None:
        self._recorder.is_muted = not self._schedule.records_end_of(self._done)
        if self._context.number is not None:  # and not switched off since the step began
            self._update.end()
            self.guard.recording(
                "the buffers", self._buffers.record, self._context, self._overwriter
            )
        self._forget()
        number = self._done if self._schedule.records(self._done) else None
        self._recorder.end_step(number)
        if number is not None:
            self._took = time.perf_counter() - self._began
            self._recorded += 1
        self._done += 1
        if self._recorded >= self._schedule.steps or not self._recorder.has_room:
            self.close()

    def _pause(self) -> None:
        """Leave a step, from whose gradients nobody has updated yet; or end it after that."""
        self._open, self._context.number = self._context.number, None
        waiting_tracers().add(self)
        if self._update.is_complete:
            self.finish()

    def _resume(self) -> bool:
        """Whether a step was left open, and goes on."""
        if self._open is None:
            return False
        self._context.number, self._open = self._open, None
        waiting_tracers().discard(self)
        return True

    @entry("leaving a step that raised", gives_up=True)
    def _abandon(self) -> None:
        """Leave a step that raised; its trace gets no end, so that it never looks whole.

        After a fault of ours it never does.
        """
        self._closed = True
        self._is_inside = False
        self._watched.close()
        self._forget()
        self._let_go()
        if self.guard.faults():
            self._write_end()
        self._recorder.abandon()

    def _switch_off(self) -> None:
        """Record nothing more of the step that runs, or that waits for its update."""
        self._resume()
        self._context.switch_off()

    def _give_up(self) -> None:
        """End the trace with the steps that it has, whatever of this was done before."""
        closed, self._closed = self._closed, True
        self._is_inside, self._open = False, None
        for work in (self._watched.close, self._forget, self._let_go):
            self.guard.recording("what was watched", work)
        if not closed:
            self.guard.recording("the end of the trace", self._write_end)
        self.guard.recording("the end of the trace", self._recorder.abandon)

    def _forget(self) -> None:
        self._context.end()
        self._boundary.end()
        self._weights.end()

    def _let_go(self) -> None:
        """Hold nothing of the run any more: no hook, no file of the reference, no model at exit."""
        waiting_tracers().discard(self)
        self._at_exit.cancel()
        self.guard.handles.remove()
        if self._overwriter is not None:
            self._overwriter.close()

    @entry("the end of the run", gives_up=True)
    def close(self) -> None:
        """End the trace; in the middle of a step the process ends, and the trace is not whole."""
        if not self._closed and self._open is not None:
            self.finish()  # which may close it
        if self._closed:
            return
        if (self._is_inside or self._context.number is not None) and not self.guard.is_off:
            self._abandon()
            return
        self._closed = True
        self._let_go()
        self._write_end()

    def _write_end(self) -> None:
        self._recorder.flush()
        for mode in self._modes if self._done else ():
            self._context.notes += mode.notes(self._context.adapter.roots)
        asked, arrivals = self._schedule.steps, self._context.arrivals
        costs = self._recorder.costs
        is_full = self._recorded < asked and not self._recorder.has_room
        if is_full:
            self._context.notes.append(
                f"recording ended after {self._recorded} of {asked} steps: the next might not fit "
                f"into --max-bytes {self._max_bytes}"
            )
            asked = self._recorded
        self._recorder.close(
            Summary(
                steps=self._recorded,
                hooks_expected=arrivals.expected,
                hooks_fired=arrivals.fired,
                unfired=tuple(arrivals.unfired),
                never_called=self._hooks.never_called() if self._done else (),
                notes=tuple(self._context.notes),
                updated_by_hand=self._update.by_hand,
                hyperparameters=self._update.hyperparameters.found(),
                asked=asked,
                is_full=is_full,
                wrappers=wrappers_of(self._context.adapter),
                optimizers=tuple(self._update.stepped),
                seconds=self._took,
                recording_seconds=costs.seconds,
                waited_seconds=costs.waited_seconds,
                bytes_written=costs.bytes_written,
                code=self._context.places.code(),
                **seen_by(self._modes),
            )
        )
