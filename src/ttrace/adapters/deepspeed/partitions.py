"""Which range of each parameter this rank updates, and where DeepSpeed's optimizers hold it.

    ZeRO 1, 2, BF16_Optimizer   a range of all parameters of a group, flattened side by side
    ZeRO 3                      a range of every parameter, which is held nowhere else
    FP16_Optimizer              all of a group, flattened; unfused: every parameter by itself

Enters: what `engine.optimizer` is. Leaves: ranges of flattened parameters. The gradient of a range
waits in a list of its own until a step hands it to the torch optimizer.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.runtime.bf16_optimizer import BF16_Optimizer
from deepspeed.runtime.fp16.fused_optimizer import FP16_Optimizer
from deepspeed.runtime.fp16.unfused_optimizer import FP16_UnfusedOptimizer
from deepspeed.runtime.zero.stage3 import DeepSpeedZeroOptimizer_Stage3
from deepspeed.runtime.zero.stage_1_and_2 import DeepSpeedZeroOptimizer
from torch import nn

_Waiting = Callable[[], torch.Tensor | None]


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnedRange:
    """Elements `start` to `stop` of a flattened parameter, from `offset` on in `main`.

    `main` is what the torch optimizer updates; `waiting` is the range's gradient before that.
    `whole` is the gradient of the whole parameter, where all ranks keep that.
    """

    main: torch.Tensor
    offset: int
    start: int
    stop: int
    waiting: _Waiting
    whole: torch.Tensor | None = None

    def of(self, value: torch.Tensor) -> torch.Tensor:
        """The range in something like `main`: itself, its gradient or its state."""
        return value.detach().view(-1)[self.offset : self.offset + self.stop - self.start]

    def hand_over(self) -> None:
        """Of a gradient that is kept whole, give the range to the torch optimizer again."""
        if self.whole is not None and self.main.grad is not None:
            self.of(self.main.grad).copy_(self.whole.view(-1)[self.start : self.stop])

    def gradient(self) -> torch.Tensor | None:
        if self.main.grad is not None:
            return self.of(self.main.grad)
        found = self.waiting()
        return None if found is None else found.detach().reshape(-1)[: self.stop - self.start]


def owned_ranges(optimizer: Any) -> dict[int, OwnedRange]:
    """By the id of the parameter; none where a torch optimizer updates parameters themselves."""
    for kind, find in _FINDERS:
        if isinstance(optimizer, kind):
            return {id(parameter): found for parameter, found in find(optimizer)}
    return {}


def is_sharded(parameter: nn.Parameter) -> bool:
    """Whether ZeRO 3 holds a range of it; the parameter itself may be empty."""
    return hasattr(parameter, "ds_tensor")


def is_gathered(parameter: nn.Parameter) -> bool:
    """Whether it is whole now: parameters too small to be worth a gather always are."""
    return tuple(parameter.shape) == tuple(parameter.ds_shape)  # type: ignore[attr-defined]


def shard_range(parameter: nn.Parameter) -> tuple[int, int]:
    """First and last element that this rank holds under ZeRO 3; the rest of its part is padding."""
    held: Any = parameter
    size = held.ds_tensor.ds_numel
    start = min(held.ds_numel, size * dist.get_rank(held.ds_process_group))
    return start, min(held.ds_numel, start + size)


_Found = Iterator[tuple[nn.Parameter, OwnedRange]]


def _flat_groups(optimizer: Any) -> _Found:
    """Of ZeRO 1 and 2."""
    groups = optimizer.averaged_gradients
    mains = optimizer.single_partition_of_fp32_groups
    for index, parameters in enumerate(optimizer.bit16_groups):
        for parameter in parameters:

            def waiting(parameter: Any = parameter, index: int = index) -> torch.Tensor | None:
                if groups.get(index) is None or parameter._hp_mapping is None:  # noqa: SLF001
                    return None
                place = parameter._index_in_param_group  # noqa: SLF001
                found: torch.Tensor = parameter._hp_mapping.get_lp_grad_fragment(place)  # noqa: SLF001
                return found

            yield parameter, _linked(parameter, mains[index], waiting)


def _bf16_groups(optimizer: Any) -> _Found:
    for index, parameters in enumerate(optimizer.bf16_groups):
        for parameter, gradient in zip(
            parameters, optimizer.fp32_groups_gradients[index], strict=True
        ):
            main = optimizer.fp32_groups_flat_partition[index]
            found = _linked(parameter, main, lambda: None)
            yield parameter, replace(found, whole=gradient.view(parameter.shape))


def _linked(parameter: Any, main: torch.Tensor, waiting: _Waiting) -> OwnedRange:
    """As the parameter says itself, of which another rank may own everything."""
    mapping = parameter._hp_mapping  # noqa: SLF001
    if mapping is None:
        return OwnedRange(main=main, offset=0, start=0, stop=0, waiting=waiting)
    held, own = mapping.hp_fragment_address, mapping.lp_fragment_address
    return OwnedRange(
        main=main,
        offset=held.start,
        start=own.start,
        stop=own.start + own.numel,
        waiting=waiting,
    )


def _sharded_groups(optimizer: Any) -> _Found:
    """Of ZeRO 3, where a group may be several."""
    groups = optimizer.averaged_gradients
    for index, parameters in enumerate(optimizer.fp16_groups):
        for place, parameter in enumerate(parameters):
            group, offset, _ = optimizer.grad_position[optimizer.get_param_id(parameter)]
            start, stop = shard_range(parameter)

            def waiting(index: int = index, place: int = place) -> torch.Tensor | None:
                found = groups.get(index)
                return None if found is None else found[place]

            yield (
                parameter,
                OwnedRange(
                    main=optimizer.fp32_partitioned_groups_flat[group],
                    offset=offset,
                    start=start,
                    stop=stop,
                    waiting=waiting,
                ),
            )


def _whole(parameter: nn.Parameter, main: torch.Tensor, offset: int) -> OwnedRange:
    return OwnedRange(
        main=main,
        offset=offset,
        start=0,
        stop=parameter.numel(),
        waiting=lambda: parameter.grad,
    )


def _fused_groups(optimizer: Any) -> _Found:
    for parameters, main in zip(optimizer.fp16_groups, optimizer.fp32_groups_flat, strict=True):
        offset = 0
        for parameter in parameters:
            yield parameter, _whole(parameter, main, offset)
            offset += parameter.numel()


def _single(optimizer: Any) -> _Found:
    for parameters, mains in zip(optimizer.fp16_groups, optimizer.fp32_groups, strict=True):
        for parameter, main in zip(parameters, mains, strict=True):
            yield parameter, _whole(parameter, main, 0)


_FINDERS: tuple[tuple[type, Callable[[Any], _Found]], ...] = (
    (DeepSpeedZeroOptimizer_Stage3, _sharded_groups),
    (DeepSpeedZeroOptimizer, _flat_groups),
    (BF16_Optimizer, _bf16_groups),
    (FP16_Optimizer, _fused_groups),
    (FP16_UnfusedOptimizer, _single),
)
