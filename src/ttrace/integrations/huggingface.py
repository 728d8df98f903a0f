"""Hugging Face Trainer: a callback that attaches and says where its steps begin and end.

    trainer = Trainer(..., callbacks=[TTraceCallback()])

It serves whatever derives from transformers.Trainer. A step ends with the optimizer's step: by the
end of the Trainer's own step gradients are cleared.
"""

from __future__ import annotations

import inspect
import os
from contextlib import suppress
from typing import Any

from transformers import TrainerCallback

from ttrace.capture.attach import attach
from ttrace.capture.guard import Guard, entry
from ttrace.capture.settings import is_asked
from ttrace.capture.tracer import OffTracer, Tracer


class TTraceCallback(TrainerCallback):  # type: ignore[misc]
    """Traces the first training that its Trainer does; inert unless the run is traced."""

    def __init__(self) -> None:
        self.guard = Guard()
        self._tracer: Tracer = OffTracer()
        self._has_begun = not is_asked(os.environ)

    @entry("the begin of training")
    def on_train_begin(self, *_: Any, model: Any = None, optimizer: Any = None, **__: Any) -> None:
        if not self._has_begun:
            self._has_begun = True
            self._tracer = attach(self._wrapped(model), optimizer)

    def on_step_begin(self, *_: Any, **__: Any) -> None:
        self._tracer.begin()

    def on_optimizer_step(self, *_: Any, **__: Any) -> None:
        self._tracer.end()

    def _wrapped(self, model: Any) -> Any:
        """What the Trainer calls: its callbacks are given the model without wrappers.

        Only who calls them knows it, and stands above on the stack.
        """
        frame = inspect.currentframe()
        while frame is not None:
            caller: Any = frame.f_locals.get("self")
            with suppress(Exception):  # whatever has a `self` is asked
                if any(each is self for each in caller.callback_handler.callbacks):
                    return caller.model_wrapped
            frame = frame.f_back
        return model
