"""Backward passes of a step: which one it is, and the loss that each starts from."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from ttrace.adapters.base import AroundBackward
from ttrace.adapters.patching import patched
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


@contextmanager
def watch_backward(
    around: AroundBackward, around_asked: Callable[[], AbstractContextManager[None]]
) -> Iterator[None]:
    """While open, holds `around(losses)` during every backward pass.

    A backward with explicit gradients is a piece of a longer chain (a pipeline stage) and starts
    from no loss. One for the gradients of other tensors than parameters (a penalty on them, a
    force) trains nothing: `around_asked` is held then. A backward inside a backward (reentrant
    checkpointing) is a part of the outer one.
    """

    def backward(
        original: Any, tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any
    ) -> Any:
        if _is_inside():
            return original(tensors, grad_tensors, *args, **kwargs)
        starts = _as_tuple(tensors)  # it may be an iterator, which can be read only once
        with around(_losses(starts, grad_tensors)):
            return original(starts, grad_tensors, *args, **kwargs)

    def grad(
        original: Any,
        outputs: Any,
        inputs: Any,
        grad_outputs: Any = None,
        *args: Any,
        **kwargs: Any,
    ) -> Any:
        if _is_inside():
            return original(outputs, inputs, grad_outputs, *args, **kwargs)
        starts, ends = _as_tuple(outputs), _as_tuple(inputs)
        # A schedule that splits backward asks for weights by their edges.
        trains = any(isinstance(end, (nn.Parameter, GradientEdge)) for end in ends)
        with around(_losses(starts, grad_outputs)) if trains else around_asked():
            return original(starts, ends, grad_outputs, *args, **kwargs)

    with (
        patched(torch.autograd, "backward", backward),
        patched(torch.autograd, "grad", grad),
    ):
        yield


def _is_inside() -> bool:
    return torch._C._current_graph_task_id() >= 0  # noqa: SLF001  (no public way to ask)


def _losses(starts: Sequence[Any], grad_tensors: Any) -> list[torch.Tensor]:
    gradients = [None] * len(starts) if grad_tensors is None else _as_tuple(grad_tensors)
    return [
        start
        for start, gradient in zip(starts, gradients, strict=False)  # torch refuses other lengths
        if gradient is None
        and isinstance(start, torch.Tensor)
        and start.numel() == 1
        and start.is_floating_point()
    ]


def _as_tuple(values: Any) -> tuple[Any, ...]:
    return (values,) if isinstance(values, (torch.Tensor, GradientEdge)) else tuple(values)
