"""Backward passes that Megatron's pipeline schedules start by themselves.

A stage that frees its outputs (`deallocate_pipeline_outputs`) calls the autograd engine directly,
since the tensor it starts from is no longer whole. A loss is freed as well: its value is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from megatron.core.pipeline_parallel import schedules

from ttrace.adapters.base import AroundBackward
from ttrace.adapters.patching import patched


@contextmanager
def watch_backward(around: AroundBackward) -> Iterator[None]:
    """While open, holds `around(losses)` during every such backward pass."""
    losses: dict[int, torch.Tensor] = {}

    def deallocate(
        free: Callable[..., None],
        out: Any,
        deallocate_pipeline_outputs: bool = False,  # noqa: FBT001, FBT002
    ) -> None:
        if deallocate_pipeline_outputs and isinstance(out, torch.Tensor) and out.numel() == 1:
            losses[id(out)] = out.detach().clone()
        free(out, deallocate_pipeline_outputs)

    def backward(run: Callable[..., None], output: Any, grad_output: Any) -> None:
        loss = losses.pop(id(output), output)  # interleaved schedules do not free it
        with around([loss] if grad_output is None else []):
            run(output, grad_output)

    with (
        patched(schedules, "deallocate_output_tensor", deallocate),
        patched(schedules, "custom_backward", backward),
    ):
        yield
