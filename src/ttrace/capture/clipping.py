"""Notices when gradients are clipped or losses scaled, however a script imported the functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import CellType
from typing import Any

import torch
from torch.nn.utils import clip_grad

from ttrace.adapters.patching import patched

Told = Callable[[object], None]
Before = Callable[[torch.Tensor | None], torch.Tensor | None]


@contextmanager
def watch_clipping(before: Before, limit: Told) -> Iterator[None]:
    """While open, calls `before(total_norm)` right before gradients are scaled, or cut by value.

    The norm that it returns is the one that is used; by value there is none. `limit` is told the
    norm to clip to.
    """

    def by_norm(
        original: Any, parameters: Any, max_norm: Any, total_norm: Any, foreach: Any = None
    ) -> None:
        limit(max_norm)
        original(parameters, max_norm, before(total_norm), foreach)

    def by_value(original: Any, *args: Any, **kwargs: Any) -> None:
        before(None)
        original(*args, **kwargs)

    # clip_grad_norm_ ends in the first, and so do scripts that make the norm themselves.
    with (
        patched(_inside(clip_grad._clip_grads_with_norm_), "cell_contents", by_norm),
        patched(_inside(clip_grad.clip_grad_value_), "cell_contents", by_value),
    ):
        yield


@contextmanager
def watch_scaling(told: Told) -> Iterator[None]:
    """While open, calls `told` with the factor by which a GradScaler makes losses larger."""

    def scale(original: Any, scaler: torch.amp.GradScaler, *args: Any, **kwargs: Any) -> Any:
        told(scaler.get_scale())
        return original(scaler, *args, **kwargs)

    with patched(torch.amp.GradScaler, "scale", scale):
        yield


def _inside(function: Any) -> CellType:
    """The cell that holds what is inside torch's no_grad wrapper.

    A name in a module could be replaced too, but not the names under which others imported it.
    """
    cell: CellType = function.__closure__[function.__code__.co_freevars.index("func")]
    return cell
