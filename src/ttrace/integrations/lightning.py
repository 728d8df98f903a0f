"""TTrace in Lightning: a callback that attaches when training starts and enters every step.

    from ttrace.integrations.lightning import TTraceCallback

    trainer = Trainer(..., callbacks=[TTraceCallback()])

A batch is a step, or a part of one that is accumulated: it goes on until the optimizer's step. The
callback serves `lightning` and `pytorch_lightning`, whichever a script has imported.
"""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable
from functools import partial, update_wrapper
from typing import Any

from torch import nn

from ttrace.capture.attach import attach
from ttrace.capture.guard import Guard, entry
from ttrace.capture.tracer import OffTracer, Tracer

_PACKAGES = ("lightning.pytorch", "pytorch_lightning")


def _callbacks() -> tuple[type, ...]:
    """The callback class of every Lightning that is imported, or else of one that there is."""
    imported = [name for name in _PACKAGES if name in sys.modules]
    if not imported:
        is_there = importlib.util.find_spec("lightning") is not None
        imported = [_PACKAGES[0] if is_there else _PACKAGES[1]]
    return tuple(importlib.import_module(name).Callback for name in imported)


class TTraceCallback(*_callbacks()):  # type: ignore[misc]
    """Traces the training of a `lightning.Trainer`; without a traced run it does nothing."""

    def __init__(self) -> None:
        self.guard = Guard()
        self._tracer: Tracer = OffTracer()
        self._restore: Callable[[], None] = _nothing

    @entry("the begin of training")
    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        model = trainer.strategy.model
        self._tracer = attach(model, trainer.optimizers)
        if self._tracer.enabled and model is pl_module:
            self._restore = _call_by_training_step(pl_module, self._tracer)

    def on_train_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int
    ) -> None:
        self._tracer.begin()

    def on_train_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        self._tracer.end()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        self._restore_once()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        self._restore_once()

    @entry("the end of training")
    def _restore_once(self) -> None:
        restore, self._restore = self._restore, _nothing
        restore()


def _call_by_training_step(module: nn.Module, tracer: Tracer) -> Callable[[], None]:
    """Count a training step as a call of its module; returns what makes it one no more.

    Where a strategy wraps the module, Lightning sends the step through the wrapper's forward, with
    the batch as the module's input. Otherwise it calls the method alone: the run on one device
    would have no inputs that tell which samples a batch has.
    """
    own = vars(module)
    before = own.get("training_step")  # of its own, where it was compiled
    method: Callable[..., Any] = module.training_step  # type: ignore[assignment]
    # A partial, since Lightning reads the arguments off what it wraps.
    own["training_step"] = update_wrapper(partial(tracer.as_call(module, method)), method)

    def restore() -> None:
        if before is None:
            own.pop("training_step", None)
        else:
            own["training_step"] = before

    return restore


def _nothing() -> None:
    return
