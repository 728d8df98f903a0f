"""Remembers something about a tensor object for as long as the object lives unchanged."""

from __future__ import annotations

import weakref
from typing import Generic, TypeVar

import torch

_T = TypeVar("_T")


class ObjectMemory(Generic[_T]):
    """A map from tensor objects; an in-place change or the end of the object forgets the entry."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int, _T]] = {}

    def find(self, tensor: torch.Tensor) -> _T | None:
        seen = self._seen.get(id(tensor))
        if seen is None:
            return None
        reference, version, value = seen
        if reference() is not tensor or version != _version(tensor):
            return None
        return value

    def keep(self, tensor: torch.Tensor, value: _T) -> None:
        self._seen[id(tensor)] = (weakref.ref(tensor), _version(tensor), value)

    def clear(self) -> None:
        self._seen.clear()


def _version(tensor: torch.Tensor) -> int:
    # Inference tensors have no version counter; nothing can change them in place under autograd.
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001
