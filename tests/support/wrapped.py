"""A tensor that has no memory of its own: whoever reads it at its address reads address 0."""

from __future__ import annotations

from typing import Any

import torch


class Wrapped(torch.Tensor):
    """Float32 outside, bytes inside, as tensors that are quantised keep them."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, inner: torch.Tensor) -> Wrapped:
        made = torch.Tensor._make_wrapper_subclass(cls, inner.shape, dtype=torch.float32)
        made.held = inner
        return made

    @classmethod
    def __torch_dispatch__(  # type: ignore[override]
        cls, call: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        plain = [each.held if isinstance(each, Wrapped) else each for each in args]
        found = call(*plain, **(kwargs or {}))
        is_shape_kept = isinstance(found, torch.Tensor) and found.dtype == torch.uint8
        return Wrapped(found) if is_shape_kept else found


def wrapped(*shape: int) -> torch.Tensor:
    return Wrapped(torch.ones(shape, dtype=torch.uint8))


def freed(*shape: int) -> torch.Tensor:
    """Whose memory was given back, as that of a parameter that is gathered when it is needed."""
    made = torch.ones(shape)
    made.untyped_storage().resize_(0)
    return made
