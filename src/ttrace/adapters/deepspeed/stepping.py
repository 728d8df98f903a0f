"""When DeepSpeed's optimizers clip and update: around the torch optimizers inside of them.

A step of theirs makes the norm of all gradients, then for one group of parameters after the other
clips its gradients and steps the torch optimizer, and then brings parameters to all ranks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from deepspeed.runtime import bf16_optimizer, engine
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch.optim import Optimizer

from ttrace.adapters.base import BeforeClip
from ttrace.adapters.patching import patched

# Their methods clip by a norm that is made before, the one argument that is none of theirs.
_CLIPPING = (
    DeepSpeedZeroOptimizer,
    DeepSpeedZeroOptimizer_Stage3,
    FP16_Optimizer,
    FP16_UnfusedOptimizer,
)


class WholeStep(Optimizer):
    """Stands for a torch optimizer whose step is a part of DeepSpeed's.

    Who waits for a step is told before the torch optimizer's, once for each group that it is given,
    and after the whole of DeepSpeed's, unless that left the update out.
    """

    def __init__(self, outer: Any, inner: Optimizer) -> None:
        # Not that of the class: it has no parameters, and nobody steps it.
        self._outer, self._inner = outer, inner
        self._is_made = False

    def register_step_pre_hook(self, hook: Callable[..., Any]) -> Any:
        def before(inner: Optimizer, args: Any, kwargs: Any) -> Any:
            self._is_made = True
            return hook(inner, args, kwargs)

        return self._inner.register_step_pre_hook(before)

    def register_step_post_hook(self, hook: Callable[..., Any]) -> Any:
        def step(original: Any, *args: Any, **kwargs: Any) -> Any:
            self._is_made = False
            result = original(*args, **kwargs)
            if self._is_made:
                hook(self._inner, args, kwargs)
            return result

        removable = _Removable()
        removable.enter_context(patched(self._outer, "step", step))
        return removable


class _Removable(ExitStack):
    def remove(self) -> None:
        self.close()


def torch_optimizer(outer: Any) -> Optimizer | None:
    """The one that makes the updates of an engine's optimizer."""
    found = outer if isinstance(outer, Optimizer) else getattr(outer, "optimizer", None)
    return found if isinstance(found, Optimizer) else None


@contextmanager
def watch_clipping(outer: Any, before: BeforeClip) -> Iterator[None]:
    """Gradients are taken before the norm is made of them."""

    def step(original: Any, *args: Any, **kwargs: Any) -> Any:
        if outer.clip_grad > 0:
            before(None)
        return original(*args, **kwargs)

    def by_norm(original: Any, parameters: Any, *args: Any, **kwargs: Any) -> Any:
        before(None)
        norm = original(parameters, *args, **kwargs)
        before(norm)
        return norm

    with ExitStack() as watched:
        if not isinstance(outer, Optimizer) and hasattr(outer, "clip_grad"):
            watched.enter_context(patched(outer, "step", step))
        for kind in _CLIPPING:
            clip = partial(_clip, before)
            watched.enter_context(patched(kind, "unscale_and_clip_grads", clip))
        flat = partial(_clip_tensors, before)
        watched.enter_context(patched(bf16_optimizer, "clip_tensors_by_global_norm", flat))
        watched.enter_context(patched(engine, "clip_grad_norm_", by_norm))
        yield


def _clip(before: BeforeClip, original: Any, outer: Any, *args: Any, **kwargs: Any) -> Any:
    """The norm is of gradients whose loss was scaled."""
    *groups, scaled = args
    if outer.clip_grad > 0:
        scaled = _used(before, scaled, float(outer.loss_scale))
    return original(outer, *groups, scaled, **kwargs)


def _clip_tensors(before: BeforeClip, original: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs["global_norm"] = _used(before, kwargs["global_norm"], 1.0)
    return original(*args, **kwargs)


def _used(before: BeforeClip, scaled: Any, scale: float) -> Any:
    """The norm to clip by: the very one, unless another takes its place."""
    norm = torch.as_tensor(scaled).detach() / scale
    used = before(norm)
    if used is None or used is norm:
        return scaled
    return used * scale if isinstance(scaled, torch.Tensor) else float(used) * scale
