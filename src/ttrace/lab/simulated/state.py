"""What a process has one of: put aside while a rank has no turn, and back when it goes on.

Random numbers of torch, Python and numpy, as every process has its own; and what TTrace replaced
for this rank. Variables of the script's own modules stay as they are: all ranks share them.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

from ttrace.adapters.patching import resume_patches, suspend_patches


@contextmanager
def put_aside() -> Iterator[None]:
    """While open, another rank may run in this process."""
    suspend_patches()
    drawn = RandomState.now()
    try:
        yield
    finally:
        drawn.restore()
        resume_patches()


class RandomState:
    """How far the random numbers of a rank are."""

    def __init__(self, tensors: torch.Tensor, python: object, arrays: object) -> None:
        self._tensors, self._python, self._arrays = tensors, python, arrays

    @classmethod
    def now(cls) -> RandomState:
        return cls(torch.get_rng_state(), random.getstate(), np.random.get_state())

    def restore(self) -> None:
        torch.set_rng_state(self._tensors)
        random.setstate(self._python)  # type: ignore[arg-type]
        np.random.set_state(self._arrays)  # type: ignore[arg-type]
