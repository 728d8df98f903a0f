"""Notices when gradients are clipped, however the training script imported torch's functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch.nn.utils import clip_grad

Before = Callable[[torch.Tensor | None], torch.Tensor | None]


@contextmanager
def watch_clipping(before: Before) -> Iterator[None]:
    """While open, calls `before(total_norm)` right before gradients are scaled, or cut by value.

    The norm that it returns is the one that is used; by value there is none.
    """

    def by_norm(original: Callable[..., None]) -> Callable[..., None]:
        def clip(parameters: Any, max_norm: Any, total_norm: Any, foreach: Any = None) -> None:
            original(parameters, max_norm, before(total_norm), foreach)

        return clip

    def by_value(original: Callable[..., None]) -> Callable[..., None]:
        def clip(*args: Any, **kwargs: Any) -> None:
            before(None)
            original(*args, **kwargs)

        return clip

    with ExitStack() as stack:
        # clip_grad_norm_ ends in the first, and so do scripts that make the norm themselves.
        stack.enter_context(_replaced(clip_grad._clip_grads_with_norm_, by_norm))
        stack.enter_context(_replaced(clip_grad.clip_grad_value_, by_value))
        yield


@contextmanager
def _replaced(
    function: Callable[..., Any], change: Callable[[Callable[..., None]], Callable[..., None]]
) -> Iterator[None]:
    """Change what is inside torch's no_grad wrapper.

    A name in a module could be replaced too, but not the names under which others imported it.
    """
    inside: Any = function
    cell = inside.__closure__[inside.__code__.co_freevars.index("func")]
    original = cell.cell_contents
    cell.cell_contents = change(original)
    try:
        yield
    finally:
        cell.cell_contents = original
