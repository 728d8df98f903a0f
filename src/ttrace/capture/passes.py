"""Backward passes of a step: which one it is, and what loss each starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import torch

from ttrace.capture.calls import RootCall
from ttrace.capture.context import StepContext
from ttrace.capture.weights import WeightHooks
from ttrace.core.ids import Kind


class BackwardPasses:
    """Records the losses of one step; a script may name them itself."""

    def __init__(self, context: StepContext, weights: WeightHooks) -> None:
        self._context = context
        self._weights = weights
        self._is_running = False
        self._is_named = False
        self._turns: Counter[RootCall] = Counter()

    def begin(self) -> None:
        self._is_named = False
        self._turns.clear()

    def name_loss(self, value: torch.Tensor) -> None:
        self._is_named = True
        if self._context.number is None:
            self._keep_up([value])
        else:
            self._record(value, self._context.calls.latest())

    @contextmanager
    def around(self, losses: Sequence[torch.Tensor]) -> Iterator[None]:
        """Record the losses of a backward pass, in the sequence before the gradients.

        They are recorded after it: the gradients that arrive tell the microbatch of a loss.
        """
        if self._context.number is None or self._is_running:
            yield
            self._keep_up(() if self._is_named else losses)
            return
        sequence = self._context.recorder.next_sequence()
        calls = self._context.calls
        calls.begin_backward()
        self._is_running = True
        try:
            yield
        finally:
            self._is_running = False
        if self._context.number is None:  # switched off since
            self._keep_up(() if self._is_named else losses)
            return
        self._context.guard.recording("the parameters' gradients", self._weights.end_backward)
        if not self._is_named:
            for loss in losses:
                self._record(loss, calls.in_backward(), sequence)

    @contextmanager
    def around_asked(self) -> Iterator[None]:
        if self._context.number is not None and not self._is_running:
            self._context.calls.begin_backward(asked=True)
        yield

    def _keep_up(self, losses: Sequence[torch.Tensor]) -> None:
        """After a fault here, other ranks still reduce the losses of this step, with this one."""
        if self._context.guard.is_off and not self._is_running:
            for loss in losses:
                self._context.adapter.reduced(loss.detach())

    def _record(
        self, value: torch.Tensor, microbatch: RootCall, sequence: int | None = None
    ) -> None:
        """Several losses of one microbatch are told apart by their order."""
        turn = self._turns[microbatch]
        self._turns[microbatch] += 1
        id_ = self._context.id(microbatch.root, Kind.LOSS, turn=turn)
        id_ = replace(id_, apart=microbatch.apart)

        def record() -> None:
            adapter = self._context.adapter
            # A loss that is still a sum or a mean over ranks is one number all the same, and so is
            # one that has dims.
            loss = adapter.reduced(value.detach())
            self._context.recorder.value(
                id_,
                loss.reshape(()) if loss.dim() and loss.numel() == 1 else loss,
                microbatch=microbatch.number,
                sequence=sequence,
                layout=adapter.loss_layout(),
            )

        self._context.guard.recording(id_, record)
