"""DeepSpeed: what a rank holds of parameters, gradients and states under ZeRO.

Imported only for an engine of deepspeed.initialize. Modules are those of the model that a person
wrote; ZeRO 3 leaves their parameters empty except while a module runs.

Ranks share out the experts of MoE layers, which go by their numbers in the whole layer. Every rank
routes its own tokens, to as many slots of an expert as one of them needs: what is laid out in slots
is nowhere a part of something that another layout has too, nor is the loss that balances them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
import torch.distributed as dist
from deepspeed.moe.layer import MoE
from deepspeed.moe.sharded_moe import MOELayer, TopKGate
from deepspeed.runtime.pipe.engine import PipelineEngine
from torch import nn
from torch.optim import Optimizer

from ttrace.adapters.base import (
    Adapter,
    BeforeClip,
    BoundarySpec,
    Coordinates,
    Parameter,
    ParameterPart,
)
from ttrace.adapters.deepspeed.partitions import (
    OwnedRange,
    is_gathered,
    is_sharded,
    owned_ranges,
    shard_range,
)
from ttrace.adapters.deepspeed.stepping import WholeStep, torch_optimizer, watch_clipping
from ttrace.adapters.flat import flat_parts
from ttrace.adapters.leaves import leaves
from ttrace.core.ids import MASTER, Kind
from ttrace.core.layout import Layout
from ttrace.core.record import REDUCTION_DTYPE
from ttrace.trace.dtypes import dtype_name

_EXPERTS = "experts.deepspeed_experts"

_MADE = (Kind.OUTPUT, Kind.GRAD_OUTPUT)

_GRADIENTS = (Kind.REDUCED_GRAD, Kind.MAIN_GRAD, Kind.CLIPPED_GRAD)


class DeepSpeedAdapter(Adapter):
    """Answers for an engine of deepspeed.initialize."""

    name = "deepspeed"

    def __init__(self, engine: Any) -> None:
        super().__init__(engine.module)
        self._engine = engine
        self._owned = owned_ranges(engine.optimizer)
        self._entered_at = engine.global_steps
        self._experts = of_experts(engine.module)

    def coordinates(self) -> Coordinates:
        group = self._engine.data_parallel_group
        batch = dist.get_rank(group), dist.get_world_size(group)
        return replace(super().coordinates(), batch=batch)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from expert_paths(super().modules())

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec | None:
        if id(module) in self._experts or is_of_slots(module, kind, slot):
            return None
        return super().boundary(module, kind, slot, tensor)

    def precision(self) -> dict[str, str]:
        dtype = getattr(self._engine, "communication_data_type", None)
        return {REDUCTION_DTYPE: dtype_name(dtype)} if isinstance(dtype, torch.dtype) else {}

    def edges(self, module: nn.Module) -> tuple[bool, bool]:
        if module is self._engine.module and isinstance(self._engine, PipelineEngine):
            return self._engine.is_first_stage(), self._engine.is_last_stage()
        return True, True

    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        owned = self._owned.get(id(parameter.tensor))
        if kind is Kind.OPTIMIZER and owned is not None:
            yield from self._state(parameter, owned)
        elif kind in _GRADIENTS and owned is not None:
            if owned.whole is not None:
                yield ParameterPart(slot=parameter.name, tensor=owned.whole)
            elif (gradient := owned.gradient()) is not None:
                yield from _range_parts(parameter.name, gradient, parameter.tensor, owned)
        elif kind is Kind.OPTIMIZER or kind in _GRADIENTS:
            yield from super().parts(kind, parameter)
        else:
            yield from self._values(kind, parameter)
            if owned is not None and owned.main.dtype != parameter.tensor.dtype:
                main = owned.of(owned.main)
                yield from _range_parts(f"{parameter.name}{MASTER}", main, parameter.tensor, owned)

    def _values(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        """All of it, or the range that this rank holds while the parameter is empty."""
        tensor: Any = parameter.tensor
        if not is_sharded(tensor) or is_gathered(tensor):
            yield from super().parts(kind, parameter)
            return
        start, stop = shard_range(tensor)
        held, shape = tensor.ds_tensor.detach().view(-1), tuple(tensor.ds_shape)
        for part, layout in flat_parts(held, Layout.full(shape), shape, start, stop):
            yield ParameterPart(slot=parameter.name, tensor=part, layout=layout)

    def _state(self, parameter: Parameter, owned: OwnedRange) -> Iterator[ParameterPart]:
        state = self._engine.optimizer.optimizer.state.get(owned.main, {})
        for slot, value in leaves(state, parameter.name):
            if value.shape != owned.main.shape:
                yield ParameterPart(slot=slot, tensor=value)  # a count of steps
            else:
                yield from _range_parts(slot, owned.of(value), parameter.tensor, owned)

    def filled(self, kind: Kind, parameter: Parameter) -> None:
        """Ranges of it stand elsewhere too: with ZeRO 3, and in fp32 beside a parameter in fp32."""
        tensor: Any = parameter.tensor
        owned = self._owned.get(id(tensor))
        if kind in _GRADIENTS and owned is not None:
            owned.hand_over()
        if kind not in (Kind.PARAM, Kind.PARAM_AFTER):
            return
        if is_sharded(tensor) and is_gathered(tensor):
            start, stop = shard_range(tensor)
            tensor.ds_tensor.view(-1)[: stop - start].copy_(tensor.detach().view(-1)[start:stop])
        if owned is not None and owned.main.dtype == tensor.dtype:
            held = tensor.ds_tensor if is_sharded(tensor) else tensor
            first = 0 if is_sharded(tensor) else owned.start
            mine = held.detach().view(-1)[first : first + owned.stop - owned.start]
            owned.of(owned.main).copy_(mine)

    def updated(self, parameter: nn.Parameter) -> torch.Tensor:
        owned = self._owned.get(id(parameter))
        return parameter if owned is None else owned.main

    def is_updated_later(self, parameter: nn.Parameter) -> bool:
        """The torch optimizer is given one group of parameters after the other."""
        owned = self._owned.get(id(parameter))
        if owned is None:
            return False
        given = self._engine.optimizer.optimizer.param_groups
        return all(tensor is not owned.main for group in given for tensor in group["params"])

    def optimizers(self, given: Sequence[Any]) -> Sequence[Optimizer]:
        """Those of the engine, whatever of it was given."""
        outer = self._engine.optimizer
        inner = torch_optimizer(outer)
        self._behind = () if inner is None else (inner,)
        return self._behind if inner is None or inner is outer else (WholeStep(outer, inner),)

    def has_gradients(self) -> bool:
        """Gradients wait in buffers of every kind until the engine makes its step."""
        return bool(self._engine.global_steps == self._entered_at)

    @contextmanager
    def tracking(self) -> Iterator[None]:
        self._entered_at = self._engine.global_steps
        yield

    def watch_clipping(self, before: BeforeClip) -> AbstractContextManager[None]:
        return watch_clipping(self._engine.optimizer, before)


def _range_parts(
    slot: str, values: torch.Tensor, parameter: Any, owned: OwnedRange
) -> Iterator[ParameterPart]:
    shape = tuple(parameter.ds_shape if is_sharded(parameter) else parameter.shape)
    for part, layout in flat_parts(values, Layout.full(shape), shape, owned.start, owned.stop):
        yield ParameterPart(slot=slot, tensor=part, layout=layout)


def expert_paths(modules: Iterable[tuple[str, nn.Module]]) -> Iterator[tuple[str, nn.Module]]:
    """Paths with the numbers of experts in the whole layer."""
    first: dict[str, int] = {}
    for path, module in modules:
        if isinstance(module, MOELayer) and module.ep_group is not None:
            below = f"{path}.{_EXPERTS}." if path else f"{_EXPERTS}."
            first[below] = dist.get_rank(module.ep_group) * module.num_local_experts
        yield _numbered(path, first), module


def of_experts(module: nn.Module) -> frozenset[int]:
    """The ids of all modules inside of layers that see tokens in slots."""
    layers = (layer for layer in module.modules() if isinstance(layer, MOELayer))
    return frozenset(id(inner) for layer in layers for inner in layer.experts.modules())


def is_of_slots(module: nn.Module, kind: Kind, slot: str) -> bool:
    """Whether it is made for the tokens of this rank together: routes, counts, their loss."""
    if isinstance(module, TopKGate):
        return kind in _MADE
    return isinstance(module, (MoE, MOELayer)) and kind in _MADE and slot != "0"


def _numbered(path: str, first: dict[str, int]) -> str:
    for below, number in first.items():
        if path.startswith(below):
            local, dot, rest = path.removeprefix(below).partition(".")
            return f"{below}{int(local) + number}{dot}{rest}"
    return path
