"""Backward passes, and the loss of each: the scalar on which the training script calls backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from torch import nn
from torch.autograd.graph import GradientEdge

from ttrace.adapters.base import AroundBackward
from ttrace.adapters.patching import patched


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
