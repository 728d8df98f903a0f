"""What Megatron's optimizers hold for each parameter: the main copy, its gradient, its state.

The distributed optimizer (ZeRO-1) gives each data-parallel rank a range of the flattened
parameter; such a range is cut into boxes, which layouts can describe.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from megatron.core.distributed import DistributedDataParallel
from megatron.core.distributed.param_and_grad_buffer import _ParamAndGradBucketGroup
from megatron.core.optimizer import optimizer as megatron_optimizer
from torch import nn
from torch.optim import Optimizer

from ttrace.adapters.base import BeforeClip, BeforeReduction
from ttrace.adapters.patching import patched


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
