"""Finds the loss: the scalar on which the training script calls backward."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd.graph import GradientEdge

from ttrace.adapters.base import AroundBackward


@contextmanager
def watch_backward(around: AroundBackward) -> Iterator[None]:
    """While open, holds `around(losses)` during every backward pass.

    A backward with explicit gradients is a piece of a longer chain (a pipeline stage) and starts
    from no loss. A backward inside a backward (reentrant checkpointing) is a part of the outer one.
    """
    original = torch.autograd.backward

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        if torch._C._current_graph_task_id() >= 0:  # noqa: SLF001  (no public way to ask)
            return original(tensors, grad_tensors, *args, **kwargs)
        starts = _as_tuple(tensors)  # it may be an iterator, which can be read only once
        with around(_losses(starts, grad_tensors)):
            return original(starts, grad_tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original


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
