"""Native PyTorch: plain modules, DDP, FSDP2, DTensor tensor and sequence parallel, pipelines.

Layouts are read from DTensor placements. Tensor parallel styles turn DTensors into plain tensors at
module boundaries (`use_local_output=True`); while a step is traced, `DTensor.to_local` leaves a tag
on its result, so that what the next module gets is still known. What has no tag is typed at
alignment by its shape against the reference.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.placement_types import Placement
from torch.nn.parallel import DataParallel, DistributedDataParallel
from torch.optim import Optimizer

from ttrace.adapters.base import (
    AfterReduction,
    AroundBackward,
    Aside,
    BeforeClip,
    BeforeReduction,
    BoundarySpec,
    Coordinates,
    Parameter,
    ParameterPart,
)
from ttrace.adapters.leaves import leaves
from ttrace.adapters.native.pipelining import Pipeline
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout

# Attribute names under which wrappers keep the wrapped module; no user's module is called so.
_WRAPPER_ATTRIBUTES = frozenset(
    {"_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module", "_forward_module"}
)
_DISTRIBUTED = "torch.distributed."
_TAG = "_ttrace_layouts"


class NativeAdapter:
    """Answers for a model built of torch.nn and torch.distributed."""

    name = "native"

    def __init__(self, model: Any) -> None:
        self._pipeline = Pipeline(model)
        self._optimizers: tuple[Optimizer, ...] = ()

    def coordinates(self) -> Coordinates:
        distributed = dist.is_available() and dist.is_initialized()
        rank = dist.get_rank() if distributed else 0
        world_size = dist.get_world_size() if distributed else 1
        axes: dict[str, tuple[int, int]] = {}
        for parameter in self.parameters():
            if isinstance(parameter.tensor, DTensor):
                axes.update(_coordinates(parameter.tensor.device_mesh))
        batch = (0, 1) if world_size == 1 else _batch_place(self._pipeline)
        return Coordinates(rank=rank, world_size=world_size, axes=axes, batch=batch)

    def modules(self) -> Iterator[tuple[str, nn.Module]]:
        seen: set[int] = set()
        for path, module in self._walk():
            if id(module) not in seen:
                seen.add(id(module))
                yield path, module

    def edges(self, module: nn.Module) -> tuple[bool, bool]:
        for stage in self._pipeline.stages:
            if _unwrapped(stage.module) is module:
                return stage.is_first, stage.is_last
        return True, True

    def microbatch(self) -> int | None:
        return self._pipeline.microbatch

    def is_rehearsal(self) -> bool:
        return self._pipeline.is_rehearsal()

    def written_class(self, module: nn.Module) -> type:
        # fully_shard and replicate make a class of their own that derives from the user's.
        written = (c for c in type(module).__mro__ if not c.__module__.startswith(_DISTRIBUTED))
        return next(written)

    def parameters(self) -> Iterator[Parameter]:
        seen: set[int] = set()
        for path, module in self._walk():
            for name, parameter in module.named_parameters(recurse=False):
                if id(parameter) not in seen:
                    seen.add(id(parameter))
                    yield Parameter(module=path, name=name, tensor=parameter)

    def main_grad(self, parameter: nn.Parameter) -> torch.Tensor | None:
        return parameter.grad

    def to_local(self, tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
        layout: Layout | None = None
        if isinstance(tensor, DTensor):
            layout = layout_of(tensor, tensor.placements)
            tensor = tensor._local_tensor  # noqa: SLF001  (to_local would enter autograd)
        elif (tag := getattr(tensor, _TAG, None)) is not None:
            layout = tag[0]
        if isinstance(tensor, AsyncCollectiveTensor):
            tensor = tensor.wait()
        return tensor.detach(), layout if layout and layout.local_shape == tensor.shape else None

    def parts(self, kind: Kind, parameter: Parameter) -> Iterator[ParameterPart]:
        tensor = parameter.tensor
        if kind is Kind.OPTIMIZER:
            for optimizer in self._optimizers:
                # Not by index: asking a defaultdict would make a state.
                for slot, state in leaves(optimizer.state.get(tensor, {}), parameter.name):
                    yield ParameterPart(slot=slot, tensor=state)
            return
        is_gradient = kind in (Kind.MAIN_GRAD, Kind.CLIPPED_GRAD)
        value = self.main_grad(tensor) if is_gradient else tensor
        if value is not None:
            yield ParameterPart(slot=parameter.name, tensor=value)

    def local_gradient_layout(self, module: str, name: str) -> Layout | None:
        return None

    def optimizers(self, given: Sequence[Any]) -> Sequence[Optimizer]:
        self._optimizers = tuple(given)
        return self._optimizers

    def watch_clipping(self, before: BeforeClip) -> AbstractContextManager[None]:
        return nullcontext()

    def watch_backward(self, around: AroundBackward) -> AbstractContextManager[None]:
        return nullcontext()

    def watch_accumulation(self, before: BeforeReduction) -> AbstractContextManager[None]:
        return nullcontext()

    def watch_reduction(self, after: AfterReduction) -> AbstractContextManager[None]:
        return nullcontext()

    def watch_losses(self, aside: Aside) -> AbstractContextManager[None]:
        return nullcontext()

    def boundary(
        self, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor
    ) -> BoundarySpec:
        tag = getattr(tensor, _TAG, None) if kind.is_gradient_of_activation else None
        return BoundarySpec(slot=slot, layout=None if tag is None else tag[1])

    def loss_layout(self) -> Layout | None:
        return None

    def reduced(self, tensor: torch.Tensor) -> torch.Tensor:
        if not isinstance(tensor, DTensor) or not any(p.is_partial() for p in tensor.placements):
            return tensor
        whole = [Replicate() if p.is_partial() else p for p in tensor.placements]
        return tensor.redistribute(placements=whole)

    def wrap_like(self, local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
        if not isinstance(like, DTensor):
            return local
        return DTensor.from_local(
            local,
            like.device_mesh,
            like.placements,
            run_check=False,
            shape=like.shape,
            stride=like.stride(),
        )

    def inherit(self, tensor: torch.Tensor, source: torch.Tensor) -> None:
        if (tag := getattr(source, _TAG, None)) is not None:
            setattr(tensor, _TAG, tag)

    def notes(self) -> Sequence[str]:
        return ()

    @contextmanager
    def tracking(self) -> Iterator[None]:
        original = DTensor.to_local

        def to_local(
            self: DTensor, *, grad_placements: Sequence[Placement] | None = None
        ) -> torch.Tensor:
            result = original(self, grad_placements=grad_placements)
            _tag(result, self, grad_placements)
            return result

        DTensor.to_local = to_local  # type: ignore[method-assign]
        try:
            with self._pipeline.tracking():
                yield
        finally:
            DTensor.to_local = original  # type: ignore[method-assign]

    def _walk(self) -> Iterator[tuple[str, nn.Module]]:
        for stage in self._pipeline.stages:
            yield from _walk(stage.module, "")


def layout_of(tensor: DTensor, placements: Sequence[Placement]) -> Layout | None:
    """The layout these placements give on this rank; None for placements that are no plain sum.

    Shards apply from left to right. A strided shard (FSDP2 over a dim that tensor parallelism had
    split before) applies after the axes to its right.
    """
    coordinate = tensor.device_mesh.get_coordinate()
    if coordinate is None:
        return None
    names = _axis_names(tensor.device_mesh)
    layout = Layout.full(tensor.shape)
    axes = range(len(placements))
    strided = [axis for axis in axes if type(placements[axis]).__name__ == "_StridedShard"]
    for axis in [*(axis for axis in axes if axis not in strided), *reversed(strided)]:
        placement: Any = placements[axis]
        if axis in strided or placement.is_shard():
            layout = layout.shard(placement.dim, coordinate[axis], tensor.device_mesh.size(axis))
        elif placement.is_partial():
            if type(placement).__name__ != "Partial" or placement.reduce_op != "sum":
                return None
            layout = layout.summed_over(names[axis])
    return layout


def _tag(local: torch.Tensor, source: DTensor, grad_placements: Sequence[Placement] | None) -> None:
    # Autograd takes the gradient of a partial value as replicated unless the caller says otherwise.
    backward = grad_placements or [
        Replicate() if placement.is_partial() else placement for placement in source.placements
    ]
    layouts = (layout_of(source, source.placements), layout_of(source, backward))
    setattr(local, _TAG, layouts)


def _axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    if mesh.mesh_dim_names is not None:
        return tuple(mesh.mesh_dim_names)
    shape = "x".join(str(size) for size in mesh.shape)
    return tuple(f"mesh{shape}.{axis}" for axis in range(mesh.ndim))


def _coordinates(mesh: DeviceMesh) -> dict[str, tuple[int, int]]:
    coordinate = mesh.get_coordinate()
    if coordinate is None:
        return {}
    places = zip(coordinate, mesh.shape, strict=True)
    return dict(zip(_axis_names(mesh), places, strict=True))


def _batch_place(pipeline: Pipeline) -> tuple[int, int] | None:
    """This rank among those that see other samples, from whichever wrapper splits the batch."""
    for module in (module for stage in pipeline.stages for module in stage.module.modules()):
        if isinstance(module, DistributedDataParallel):
            group = module.process_group
            return dist.get_rank(group), dist.get_world_size(group)
        if isinstance(module, FSDPModule) and (place := _fsdp_place(module)) is not None:
            return place
    return None


def _fsdp_place(module: FSDPModule) -> tuple[int, int] | None:
    try:
        groups = _first_attribute(
            module._get_fsdp_state(),  # noqa: SLF001
            lambda state: state._fsdp_param_groups,  # noqa: SLF001
            lambda state: [state._fsdp_param_group],  # noqa: SLF001  (before torch 2.12)
        )
        info = groups[0].mesh_info
    except (AttributeError, IndexError):
        return None
    index = getattr(info, "shard_mesh_rank", 0)
    size = getattr(info, "shard_mesh_size", 1)
    replica = getattr(info, "replicate_mesh_rank", 0)
    replicas = getattr(info, "replicate_mesh_size", 1)
    return replica * size + index, replicas * size


def _first_attribute(value: Any, *getters: Callable[[Any], Any]) -> Any:
    for getter in getters:
        try:
            return getter(value)
        except AttributeError:
            continue
    raise AttributeError(f"{type(value).__name__} has none of the expected attributes")


def _walk(module: nn.Module, path: str) -> Iterator[tuple[str, nn.Module]]:
    """Canonical paths; a wrapper and what it wraps share one path, which the wrapped one keeps."""
    inner = _wrapped(module)
    if inner is not None:
        yield from _walk(inner, path)
        return
    yield path, module
    for name, child in module.named_children():
        yield from _walk(child, f"{path}.{name}" if path else name)


def _unwrapped(module: nn.Module) -> nn.Module:
    inner = _wrapped(module)
    return module if inner is None else _unwrapped(inner)


def _wrapped(module: nn.Module) -> nn.Module | None:
    if isinstance(module, (DistributedDataParallel, DataParallel)):
        return module.module
    for name, child in module.named_children():
        if name in _WRAPPER_ATTRIBUTES:
            return child
        if name == "module" and type(module).__name__ in {
            "FullyShardedDataParallel",
            "_FabricModule",
        }:
            return child
    return None
