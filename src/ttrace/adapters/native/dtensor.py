"""What a DTensor knows of its layout, and what its plain local tensor remembers of it.

Tensor parallel styles turn DTensors into plain tensors at module boundaries
(`use_local_output=True`). While `remembering` is open, `DTensor.to_local` leaves a tag on its
result, so that what the next module gets is still known.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch.distributed._functional_collectives import AsyncCollectiveTensor
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate
from torch.distributed.tensor.placement_types import Placement

from ttrace.adapters.patching import patched
from ttrace.adapters.quantised import kept_as, plain_values
from ttrace.core.layout import Layout
from ttrace.trace.quantised import Quantised

_TAG = "_ttrace_layouts"


def to_local(tensor: torch.Tensor) -> tuple[torch.Tensor, Layout | None]:
    """The plain local tensor, and its layout by its placements or its tag.

    A mean over ranks is told as the sum that it is: each rank's part divided by their number.
    """
    layout: Layout | None = None
    parts = 1
    if type(tensor) is torch.Tensor and not hasattr(tensor, _TAG):
        return tensor.detach(), None  # nearly all are, and every record asks
    if isinstance(tensor, DTensor):
        parts = _averaged(tensor)
        summed = [Partial() if _is_average(place) else place for place in tensor.placements]
        layout = layout_of(tensor, summed)
        tensor = tensor._local_tensor  # noqa: SLF001  (to_local would enter autograd)
    elif (tag := getattr(tensor, _TAG, None)) is not None:
        layout = tag[0]
    tensor = plain_values(_waited(tensor))
    tensor = tensor.detach() if parts == 1 else tensor.detach() / parts
    return tensor, layout if layout and layout.local_shape == tensor.shape else None


def layout_beside(like: torch.Tensor, plain: torch.Tensor) -> Layout | None:
    """Of a plain tensor of the shape that this rank holds of a DTensor, which has others too."""
    if not isinstance(like, DTensor) or isinstance(plain, DTensor) or hasattr(plain, _TAG):
        return None
    is_part = plain.shape == like._local_tensor.shape != like.shape  # noqa: SLF001
    return layout_of(like, like.placements) if is_part else None


def quantised(tensor: torch.Tensor) -> Quantised | None:
    """What the local tensor is kept as; a mean that is still to be taken is not."""
    if not isinstance(tensor, DTensor):
        return kept_as(tensor)
    return kept_as(_waited(tensor._local_tensor)) if _averaged(tensor) == 1 else None  # noqa: SLF001


def wrap_like(local: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    if not isinstance(like, DTensor):
        return local
    parts = _averaged(like)
    return DTensor.from_local(
        local if parts == 1 else local * parts,
        like.device_mesh,
        like.placements,
        run_check=False,
        shape=like.shape,
        stride=like.stride(),
    )


def reduced(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor with its partial placements reduced, as torch would do next."""
    if not isinstance(tensor, DTensor) or not any(p.is_partial() for p in tensor.placements):
        return tensor
    whole = [Replicate() if p.is_partial() else p for p in tensor.placements]
    return tensor.redistribute(placements=whole)


def remembering() -> AbstractContextManager[None]:
    """While open, a DTensor's local tensor remembers the layouts of its value and its gradient."""

    def tagged(
        original: Any, source: DTensor, *, grad_placements: Sequence[Placement] | None = None
    ) -> torch.Tensor:
        local: torch.Tensor = original(source, grad_placements=grad_placements)
        # Autograd takes the gradient of a partial value as replicated unless told otherwise.
        backward = grad_placements or [
            Replicate() if placement.is_partial() else placement for placement in source.placements
        ]
        layouts = (layout_of(source, source.placements), layout_of(source, backward))
        setattr(local, _TAG, layouts)
        return local

    return patched(DTensor, "to_local", tagged)


def remembered_gradient(tensor: torch.Tensor) -> Layout | None:
    """The layout of the gradient of a local tensor, where it remembers that."""
    tag = getattr(tensor, _TAG, None)
    return None if tag is None else tag[1]


def inherit(tensor: torch.Tensor, source: torch.Tensor) -> None:
    if (tag := getattr(source, _TAG, None)) is not None:
        setattr(tensor, _TAG, tag)


def layout_of(tensor: Any, placements: Sequence[Placement]) -> Layout | None:
    """The layout these placements give on this rank; None for placements that are no plain sum.

    Of a DTensor, or of what it is made by: a shape and a mesh.

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


def mesh_coordinates(tensor: torch.Tensor) -> dict[str, tuple[int, int]]:
    """This rank's index and size on every axis of the tensor's mesh; none for a plain tensor."""
    # A local tensor may know the DTensor that it is while the model runs.
    source = tensor if isinstance(tensor, DTensor) else getattr(tensor, "_st_info", None)
    mesh: DeviceMesh | None = None if source is None else source.device_mesh
    coordinate = None if mesh is None else mesh.get_coordinate()
    if mesh is None or coordinate is None:
        return {}
    places = zip(coordinate, mesh.shape, strict=True)
    return dict(zip(_axis_names(mesh), places, strict=True))


def mesh_ranks(tensor: torch.Tensor) -> tuple[int, ...]:
    """All ranks of the mesh of a DTensor; none for a plain tensor."""
    return tuple(tensor.device_mesh.mesh.flatten().tolist()) if isinstance(tensor, DTensor) else ()


def _waited(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.wait() if isinstance(tensor, AsyncCollectiveTensor) else tensor


def _is_average(placement: Placement) -> bool:
    return type(placement) is Partial and placement.reduce_op == "avg"


def _averaged(tensor: DTensor) -> int:
    """Over how many ranks a mean is still to be taken; 1 for a tensor that is none."""
    sizes = zip(tensor.placements, tensor.device_mesh.shape, strict=True)
    return math.prod(size for placement, size in sizes if _is_average(placement))


def _axis_names(mesh: DeviceMesh) -> tuple[str, ...]:
    if mesh.mesh_dim_names is not None:
        return tuple(mesh.mesh_dim_names)
    shape = "x".join(str(size) for size in mesh.shape)
    return tuple(f"mesh{shape}.{axis}" for axis in range(mesh.ndim))
