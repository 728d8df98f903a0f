"""What Megatron does with losses, gradients and parameters in a step.

Optimizers hold for each parameter the main copy, its gradient and its state. The distributed one
(ZeRO-1) gives each data-parallel rank a range of the flattened parameter; such a range is cut into
boxes, which layouts can describe. Functions named `watch_...` are the moments that an adapter
watches: backward passes that pipeline schedules start by themselves, auxiliary losses that are
added to the loss in backward without being returned, reductions and clipping.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.optimizer import optimizer as megatron_optimizer
from megatron.core.pipeline_parallel import schedules
from megatron.core.transformer.moe import router
from megatron.core.transformer.multi_token_prediction import MTPLossAutoScaler
from torch import nn
from torch.optim import Optimizer

from ttrace.adapters.base import AroundBackward, Aside, BeforeClip, BeforeReduction
from ttrace.adapters.megatron.layouts import Ranks
from ttrace.adapters.patching import patched
from ttrace.core.layout import Layout

# Its counts are those of all data-parallel ranks and earlier microbatches: no sum of shares.
_GLOBAL = "global_load_balancing_loss"


class Optimizers:
    """The optimizers inside the one that a script steps."""

    def __init__(self, given: Sequence[Any]) -> None:
        self._parts: list[Any] = []
        for optimizer in given:
            self._parts += getattr(optimizer, "chained_optimizers", [optimizer])
        self._parts = [
            part for part in self._parts if not getattr(part, "is_stub_optimizer", False)
        ]
        self._owner: dict[int, Any] = {}
        self._mains: dict[int, torch.Tensor] = {}
        for part in self._parts:
            for parameter, main in _pairs(part):
                self._owner[id(parameter)] = part
                self._mains[id(parameter)] = main
        self.gathers_late = any(
            part.ddp_config.overlap_param_gather for part in self._parts if _is_sharded(part)
        )

    def inner(self) -> list[Optimizer]:
        return [getattr(part, "optimizer", part) for part in self._parts]

    @property
    def shards(self) -> bool:
        """Whether each data-parallel rank owns a range of every parameter only."""
        return any(map(_is_sharded, self._parts))

    def range_of(self, parameter: nn.Parameter) -> tuple[int, int] | None:
        """The flat range of the parameter that this rank updates; None: all of it."""
        if not self.shards:
            return None
        owner = self._owner.get(id(parameter))
        if owner is None:
            return 0, 0  # the whole parameter is another rank's
        found = owner._get_model_param_range_map(parameter)["param"]  # noqa: SLF001
        return found.start, found.end

    def main(self, parameter: nn.Parameter) -> torch.Tensor | None:
        """What the inner optimizer updates."""
        return self._mains.get(id(parameter))

    def state(self, parameter: nn.Parameter) -> dict[str, Any]:
        owner, main = self._owner.get(id(parameter)), self.main(parameter)
        return {} if owner is None else dict(owner.optimizer.state.get(main, {}))


def _is_sharded(part: Any) -> bool:
    return hasattr(part, "model_param_group_index_map")


def _pairs(part: Any) -> Iterator[tuple[nn.Parameter, torch.Tensor]]:
    """Model parameters and what the inner optimizer updates for them."""
    groups = part.optimizer.param_groups
    if _is_sharded(part):
        for parameter, (group, place) in part.model_param_group_index_map.items():
            yield parameter, groups[group]["params"][place]
        return
    for models, mains in zip(
        getattr(part, "float16_groups", []),
        getattr(part, "fp32_from_float16_groups", []),
        strict=True,
    ):
        yield from zip(models, mains, strict=True)
    copies = {id(main) for mains in getattr(part, "fp32_from_float16_groups", []) for main in mains}
    for group in groups:
        yield from ((p, p) for p in group["params"] if id(p) not in copies)


def watch_clipping(before: BeforeClip) -> AbstractContextManager[None]:
    """Megatron's optimizers clip by a function of their own."""

    def clip(
        original: Any, parameters: Any, max_norm: Any, total_norm: Any, *args: Any, **kwargs: Any
    ) -> None:
        norm = torch.tensor(float(total_norm), dtype=torch.float32)
        used = before(norm)
        total_norm = total_norm if used is None or used is norm else float(used)
        original(parameters, max_norm, total_norm, *args, **kwargs)

    return patched(megatron_optimizer, "clip_grad_by_total_norm_fp32", clip)


def watch_accumulation(before: BeforeReduction) -> AbstractContextManager[None]:
    """A group of buckets is reduced when every microbatch was added to it."""

    def start(original: Any, group: Any, *args: Any, **kwargs: Any) -> None:
        before(group.params)
        original(group, *args, **kwargs)

    return patched(_ParamAndGradBucketGroup, "start_grad_sync", start)


def watch_reduction(after: Callable[[nn.Module], None]) -> AbstractContextManager[None]:
    """Every chunk, once its gradients are summed over data-parallel ranks and before more sums."""

    def finish(original: Any, chunk: nn.Module, *args: Any, **kwargs: Any) -> None:
        original(chunk, *args, **kwargs)
        after(chunk)

    return patched(DistributedDataParallel, "finish_grad_sync", finish)


@contextmanager
def watch_backward(around: AroundBackward) -> Iterator[None]:
    """While open, holds `around(losses)` during every backward pass that a schedule starts itself.

    A stage that frees its outputs (`deallocate_pipeline_outputs`) calls the autograd engine, since
    the tensor it starts from is no longer whole. A loss is freed as well: its value is kept.
    """
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


@contextmanager
def watch_losses(ranks: Ranks, aside: Aside, *, per_token: bool) -> Iterator[None]:
    """Calls `aside(slot, value, layout)` for every auxiliary loss, coefficients in it.

    Each is an output of the module that makes it: of a router its load balancing and z-loss, of the
    model the loss of each multi-token head.
    """
    shares = _summed(ranks, "tp", "cp")  # each rank has the share of its own tokens

    def balance(original: Any, self: Any, activation: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(zip(("aux_loss_coeff", "aux_loss", "aux_loss_name"), args, strict=False))
        given |= kwargs
        if given["aux_loss_name"] != _GLOBAL:
            aside(given["aux_loss_name"], given["aux_loss"], shares)
        return original(self, activation, *args, **kwargs)

    def squares(original: Any, *args: Any, **kwargs: Any) -> Any:
        loss = original(*args, **kwargs)
        aside("z_loss", loss, shares)
        return loss

    def head(original: Any, activation: Any, losses: torch.Tensor) -> Any:
        # A mean over the tokens of this rank, or a sum; the former is then averaged over ranks.
        total = losses.detach().sum() / (1 if per_token else ranks.cp[1])
        aside("mtp_loss", total, _summed(ranks, "cp"))
        return original(activation, losses)

    with (
        patched(router.TopKRouter, "attach_and_log_load_balancing_loss", balance),
        patched(router, "z_loss_func", squares),
        patched(MTPLossAutoScaler, "apply", head),
    ):
        yield


def _summed(ranks: Ranks, *axes: str) -> Layout:
    sizes = {"tp": ranks.tp[1], "cp": ranks.cp[1]}
    return Layout.full(()).summed_over(*(axis for axis in axes if sizes[axis] > 1))
