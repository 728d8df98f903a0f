"""The tracer of a watched run: it takes digests when optimizers step, and compares after a step.

Nothing stands on modules and tensors. A step ends where the script leaves it after an update, or
with an update that comes after that; where there is no optimizer, wherever the script leaves it.
The first rank writes what came of it, at the first comparison, at every drift, and when the run or
the watching ends; the first drift is also said in the log of the run, once.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from functools import partial
from multiprocessing.util import Finalize
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from ttrace.adapters.base import Adapter, Parameter
from ttrace.adapters.patching import guarding
from ttrace.capture.guard import Guard, entry
from ttrace.capture.optimizer_hooks import (
    Arguments,
    OptimizerHooks,
    exchange_closure,
    select_parameters,
    watched_closure,
)
from ttrace.capture.replicas.comparison import Comparison, names_of
from ttrace.capture.replicas.exchange import Exchange, NotAnswered
from ttrace.capture.replicas.held import Digests, of_buffers, of_parameters
from ttrace.capture.settings import WatchSettings
from ttrace.capture.tracer import Attached, SteppingTracer, waiting_tracers
from ttrace.core.drift import Drift, SharedKind, WatchedRun, in_words
from ttrace.core.ids import Kind
from ttrace.text import inert
from ttrace.trace.progress import write_refusal
from ttrace.trace.watch_file import write_watched

_LOG = logging.getLogger("ttrace")
_MOST_DRIFTS = 64  # chosen: what a person reads; further ones are counted
_MOST_NAMES = 8  # chosen: enough to see what they are


class ReplicaTracer(SteppingTracer):
    """Compares what replicas share, on all ranks alike, until a rank does not answer."""

    enabled = False  # nothing is recorded: a script or trainer need do nothing for it

    def __init__(
        self,
        adapter: Adapter,
        attached: Attached,
        settings: WatchSettings,
        log: WatchLog | None = None,
    ) -> None:
        self.attached, self.folder = attached, settings.folder
        self.guard = Guard()
        self.guard.give_up = self._give_up
        self.log = log or WatchLog(settings.folder)
        self._adapter, self._schedule = adapter, settings.schedule
        self._kinds = frozenset(SharedKind) - settings.without
        self._digests = Digests()
        self._comparison: Comparison | None = None
        self._exchange: Exchange | None = None
        self._closed = False
        self._updated: set[int] = set()
        self._taken: set[tuple[str, str]] = set()
        with guarding(self.guard.harmed):
            self._optimizers = adapter.optimizers(attached.optimizers)
            OptimizerHooks(self.guard, self._optimizers, before=self._before, after=self._after)
        self._at_exit = Finalize(None, self.finish, exitpriority=0)
        waiting_tracers().add(self)

    def loss(self, value: torch.Tensor) -> torch.Tensor:
        return value

    def as_call(self, module: nn.Module, method: Callable[..., Any]) -> Callable[..., Any]:
        return method

    @property
    def is_open(self) -> bool:
        return not self._closed

    @property
    def has_begun(self) -> bool:
        return self.log.steps > 0 or self._is_inside

    @entry("the end of the run", gives_up=True)
    def finish(self) -> None:
        """The run is over."""
        if not self._closed:
            if self._updated and not self._is_inside:
                self._compare()
            self.let_go()
            self.log.end()

    def let_go(self) -> None:
        """Hold nothing of the run any more."""
        self._closed = True
        waiting_tracers().discard(self)
        self._at_exit.cancel()
        self.guard.handles.remove()
        self._digests.clear()
        if self._exchange is not None:
            self._exchange.leave()
        self._exchange = self._comparison = None

    @entry("the begin of a step", lambda *_: False, gives_up=True)
    def _try_enter(self) -> bool:
        if self._closed or self._is_inside:
            return False
        if self._updated:  # after the last step was left, by some of its optimizers
            self._compare()
        self._is_inside = not self._closed
        return self._is_inside

    def _leave(self) -> None:
        self._is_inside = False
        if self._updated or not self._optimizers:
            self._compare()

    @entry("leaving a step that raised", gives_up=True)
    def _abandon(self) -> None:
        """The others may have made this step: the next comparison tells."""
        self._is_inside = False
        self._forget()

    def _before(
        self, optimizer: Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Arguments | None:
        """Take the gradients, or have them taken when the closure has made them."""
        if not self._is_watched(SharedKind.GRADIENT):
            return None
        take = partial(self._take_gradients, optimizer)
        watched = partial(
            watched_closure,
            after_first=take,
            around_others=nullcontext,
            told=self.guard.harmed,
        )
        changed = exchange_closure(args, kwargs, watched)
        if changed is None:
            take()
        return changed

    def _after(self, optimizer: Optimizer, *_: Any) -> None:
        self._updated.add(id(optimizer))
        if not self._is_inside and len(self._updated) == len(self._optimizers):
            self.guard.recording("the end of a step", self._compare)

    def _is_watched(self, kind: SharedKind) -> bool:
        return (
            kind in self._kinds
            and not self._closed
            and self._schedule.records(self.log.steps)
            and _is_grouped()
            and not _is_capturing()
        )

    def _take_gradients(self, optimizer: Optimizer) -> None:
        start = time.perf_counter()
        new = [p for p in self._parameters_of(optimizer) if (p.module, p.name) not in self._taken]
        self._taken.update((p.module, p.name) for p in new)
        self._digests.add(of_parameters(self._adapter, SharedKind.GRADIENT, new))
        self.log.seconds += time.perf_counter() - start

    def _parameters_of(self, optimizer: Optimizer) -> Sequence[Parameter]:
        is_alone = len(self._optimizers) == 1
        return select_parameters(self._adapter, optimizer, is_alone=is_alone)

    def _compare(self) -> None:
        """The step is over."""
        try:
            if not self._closed and self._schedule.records(self.log.steps):
                start = time.perf_counter()
                self._ask()
                self.log.seconds += time.perf_counter() - start
        except NotAnswered as error:
            self._break_off(str(error))
        finally:
            self.log.steps += 1
            self._forget()

    def _ask(self) -> None:
        self.log.meet(*((dist.get_rank(), dist.get_world_size()) if _is_grouped() else (0, 1)))
        if not _is_grouped() or dist.get_world_size() == 1:
            return
        if SharedKind.PARAMETER in self._kinds:
            self._digests.add(self._parameters_after())
        if SharedKind.BUFFER in self._kinds:
            self._digests.add(of_buffers(self._adapter))
        if self._comparison is None:
            self.log.exchanges += 1
            self._exchange = Exchange(self.log.exchanges)
            self._comparison = Comparison(self._exchange)
        drifts = self._comparison.after(self.log.steps, self._digests.fetched())
        self.log.add(self._comparison, drifts)

    def _parameters_after(self) -> Iterable[Any]:
        parameters = list(self._adapter.parameters())
        for parameter in parameters[:1]:  # asked for states, an adapter notices that a step is over
            next(iter(self._adapter.parts(Kind.OPTIMIZER, parameter)), None)
        return of_parameters(self._adapter, SharedKind.PARAMETER, parameters)

    def _forget(self) -> None:
        self._updated.clear()
        self._taken.clear()
        self._digests.clear()

    def _break_off(self, why: str) -> None:
        _LOG.warning("ttrace: watching ends in step %d: %s", self.log.steps, why)
        self.let_go()
        self.log.break_off(why)

    def _give_up(self) -> None:
        """After a fault of ours, which the guard has told."""
        with suppress(Exception):
            self.let_go()
        self.log.break_off("; ".join(self.guard.faults()), is_own=True)


def _is_grouped() -> bool:
    return dist.is_available() and dist.is_initialized()


def _is_capturing() -> bool:
    """What a CUDA graph replays later are not the digests of those steps."""
    return torch.cuda.is_available() and torch.cuda.is_current_stream_capturing()


class WatchLog:
    """What a watched run tells, of one process; only the first rank writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank = 0
        self.steps = 0  # that this process has made
        self.seconds = 0.0  # that watching took of it
        self.exchanges = 0  # that were begun: one for each model that took another's place
        self._told = WatchedRun(world_size=1)  # but for the steps and seconds of now
        self._is_logged = False

    def meet(self, rank: int, world_size: int) -> None:
        self._rank, self._told = rank, replace(self._told, world_size=world_size)

    def add(self, comparison: Comparison, drifts: Sequence[Drift]) -> None:
        """What came out of a comparison."""
        told = self._told
        room = _MOST_DRIFTS - len(told.drifts)
        self._told = replace(
            told,
            watched=told.watched + 1,
            compared=comparison.world.compared,
            unjudged=comparison.unjudged,
            drifts=(*told.drifts, *drifts[:room]),
            more_drifts=told.more_drifts + len(drifts[room:]),
        )
        if drifts and not self._is_logged and self._rank == 0:
            self._is_logged = True
            more = f", and {len(drifts) - 1} more" if len(drifts) > 1 else ""
            _LOG.error("ttrace: %s%s; training goes on", inert(in_words(drifts[0])), more)
        if drifts or not told.watched:
            self._told = replace(
                self._told,
                names=tuple(names_of(comparison.roll, comparison.world, _MOST_NAMES)),
                more_drifts=self._told.more_drifts + comparison.not_looked_at,
            )
            comparison.not_looked_at = 0
            self._write()

    def break_off(self, why: str, *, is_own: bool = False) -> None:
        """Others hear that this rank is gone, and not why."""
        if self._told.broke_off is None:
            self._told = replace(self._told, broke_off=why)
            if is_own and self._rank != 0:
                with suppress(OSError):
                    write_refusal(self._folder, why)
            self._write()

    def end(self) -> None:
        self._told = replace(self._told, ended=True)
        self._write()

    def _write(self) -> None:
        if self._rank != 0:
            return
        with suppress(OSError):  # a disk that is full ends nothing
            told = replace(self._told, steps=self.steps, seconds=self.seconds)
            write_watched(self._folder, told)
