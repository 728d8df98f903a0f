"""Native PyTorch: modules, DDP, FSDP, DTensor tensor and sequence parallel, pipelines.

Layouts are read from DTensor placements and from the tags of `dtensor.remembering`. What has
neither is typed at alignment by its shape against the reference.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import (
    Adapter,
    AroundBackward,
    BeforeClip,
    BoundarySpec,
    Coordinates,
    Parameter,
    ParameterPart,
    somewhere,
)
from ttrace.adapters.native import dtensor
from ttrace.adapters.native.modules import (
    FLAT,
    HeldParameter,
    ModuleTree,
    batch_place,
    held_parameters,
    holds_unsharded_gradients,
    precision_of,
    replicated_modules,
    unwrapped,
    watch_clipping,
    written_class,
)
from ttrace.adapters.native.pipelining import Pipeline
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout
from ttrace.trace.quantised import Quantised


class NativeAdapter(Adapter):
    """Answers for a model built of torch.nn and torch.distributed."""

    name = "native"

    def __init__(self, model: Any) -> None:
        self._pipeline = Pipeline(model)
        super().__init__([stage.module for stage in self._pipeline.stages])
        self._tree = ModuleTree((stage.name, stage.module) for stage in self._pipeline.stages)
        self._held = held_parameters(self.roots, self.modules())
        self._replicated = replicated_modules(self.roots, self.modules())

    def coordinates(self) -> Coordinates:
        alone = super().coordinates()
        axes: dict[str, tuple[int, int]] = {}
        for parameter in self.parameters():
            axes.update(dtensor.mesh_coordinates(parameter.tensor))
        batch = alone.batch if alone.world_size == 1 else batch_place(self.roots)
        return replace(alone, axes=axes, batch=batch)

    def precision(self) -> dict[str, str]:
        return precision_of(self.roots)

    def edges(self, module: nn.Module) -> tuple[bool, bool]:
        for stage in self._pipeline.stages:
            if unwrapped(stage.module) is module:
                return stage.is_first, stage.is_last
        return True, True

    def microbatch(self) -> int | None:
        return self._pipeline.microbatch

    def backward_microbatch(self) -> int | None:
        return self._pipeline.backward_microbatch

    def is_weight_pass(self) -> bool:
        return self._pipeline.is_weight_pass

    def is_rehearsal(self) -> bool:
        return self._pipeline.is_rehearsal()

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        yield from self._tree.modules()

    def parameters(self) -> Iterator[Parameter]:
        for (path, name), held in self._held.items():
            yield Parameter(module=path, name=name, tensor=held.tensor, computes=held.computes)
        for parameter in super().parameters():
            if (parameter.module, parameter.name) not in self._held and parameter.name != FLAT:
                yield parameter

    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        parts = super().parts(kind, parameter)
        held = self._held.get((parameter.module, parameter.name))
        return _beside(parameter.tensor, parts) if held is None else _cut(held, parts)

    def has_gradients(self) -> bool:
        return super().has_gradients() or holds_unsharded_gradients(self.roots)

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        held = self._held.get((module, name))
        return None if held is None else held.layout

    def replicas(self, module: str, tensor: torch.Tensor) -> Sequence[int] | None:
        return dtensor.mesh_ranks(tensor) or self._replicated.get(module)

    def watch_clipping(self, before: BeforeClip) -> AbstractContextManager[None]:
        return watch_clipping(before)

    def written_class(self, module: nn.Module) -> type:
        return written_class(module)

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec:
        layout = dtensor.remembered_gradient(tensor)
        if layout is None or not kind.is_gradient_of_activation:
            return somewhere(slot)
        return BoundarySpec(slot=slot, layout=layout)

    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        return dtensor.to_local(tensor)

    def quantised(self, tensor: torch.Tensor) -> Quantised | None:
        return dtensor.quantised(tensor)

    def wrap_like(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        return dtensor.wrap_like(local, like)

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        return dtensor.reduced(tensor)

    def inherit(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        dtensor.inherit(tensor, source)

    @contextmanager
    def tracking(self) -> Iterator[None]:
        with dtensor.remembering(), self._pipeline.tracking():
            yield

    def watch_backward(self, around: AroundBackward) -> AbstractContextManager[None]:
        return self._pipeline.watch_backward(around)


def _beside(parameter: torch.Tensor, parts: Iterable[ParameterPart]) -> Iterator[ParameterPart]:
    """Parts that are plain tensors beside a parameter that is none lie where its own part does.

    So does the state of an optimizer that works on local tensors.
    """
    for part in parts:
        layout = dtensor.layout_beside(parameter, part.tensor) if part.layout is None else None
        yield part if layout is None else replace(part, layout=layout)


def _cut(held: HeldParameter, parts: Iterable[ParameterPart]) -> Iterator[ParameterPart]:
    """What of these is of one parameter that a wrapper holds in another form."""
    for part in parts:
        for tensor, layout in held.parts(part.tensor):
            yield replace(part, tensor=tensor, layout=layout)
