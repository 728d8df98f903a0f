"""Finds the loss: the scalar on which the training script calls backward."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def watch_backward(found: Callable[[torch.Tensor], None]) -> Iterator[None]:
    """While open, calls `found` with every scalar that a backward pass starts from.

    A backward with explicit gradients is a piece of a longer chain (a pipeline stage), not a loss.
    """
    original = torch.autograd.backward

    def backward(tensors: Any, grad_tensors: Any = None, *args: Any, **kwargs: Any) -> Any:
        starts = [tensors] if isinstance(tensors, torch.Tensor) else list(tensors)
        if grad_tensors is None:
            for tensor in starts:
                if tensor.numel() == 1 and tensor.is_floating_point():
                    found(tensor)
        return original(tensors, grad_tensors, *args, **kwargs)

    torch.autograd.backward = backward
    try:
        yield
    finally:
        torch.autograd.backward = original
