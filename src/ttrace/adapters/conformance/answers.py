"""Promises about single tensors, and about what an adapter answers before any step.

The former are local values, layouts that fit and places at module boundaries; the latter are hooks,
coordinates and names. Each function yields a sentence for everything that is wrong.
"""

from __future__ import annotations

import difflib
import inspect
import math
from collections.abc import Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from ttrace.adapters.base import (
    NO_BATCH,
    Adapter,
    BoundarySpec,
    Coordinates,
    Parameter,
    SentTokens,
)
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout

HOOKS = frozenset(
    name for name in dir(Adapter) if not name.startswith("_") and callable(getattr(Adapter, name))
)


def same_bits(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    """Whether two plain tensors are alike to the bit, also where they are no numbers."""
    if one is None or other is None:
        return one is other
    if (one.shape, one.dtype) != (other.shape, other.dtype):
        return False
    left, right = (x.detach().contiguous().reshape(-1).view(torch.uint8) for x in (one, other))
    return torch.equal(left, right)


def local_tensors_are_inverse(adapter: Adapter) -> Iterator[str]:
    """Parameters: what to_local gives is the parameter's own memory, and wrap_like undoes it."""
    plain = torch.arange(6.0).reshape(2, 3)
    yield from round_trip(adapter, "a plain tensor", plain)
    if not same_bits(adapter.to_local(adapter.reduced(plain))[0], plain):
        yield "reduced changes a plain tensor, of which no reduction is pending"
    for parameter in adapter.parameters():
        name = f"{parameter.module}.{parameter.name}".lstrip(".")
        yield from round_trip(adapter, name, parameter.tensor)
        yield from _shares_memory(adapter, name, parameter.tensor)
        yield from part_faults(adapter, Kind.PARAM, parameter)


def round_trip(adapter: Adapter, name: str, tensor: torch.Tensor) -> Iterator[str]:
    """to_local leaves autograd and any wrapper; wrap_like around the same values is the same."""
    local, layout = adapter.to_local(tensor)
    if local.requires_grad:
        yield f"to_local of {name} is still in autograd"
    if not same_bits(local, adapter.to_local(tensor)[0]):
        yield f"to_local of {name} gives other values each time"
    yield from layout_faults(adapter, f"to_local of {name}", local, layout)
    again = adapter.wrap_like(local.clone(), like=tensor)
    if (again.shape, again.dtype) != (tensor.shape, tensor.dtype):
        yield f"wrap_like of {name} is {again.dtype} of {list(again.shape)}"
        return
    adapter.inherit(again, tensor)
    back, known = adapter.to_local(again)
    if not same_bits(back, local):
        yield f"to_local of wrap_like of {name} is not bitwise what was wrapped"
    if known != layout:
        yield f"wrap_like and inherit make another layout of {name}: {known}, was {layout}"


def layout_faults(
    adapter: Adapter, what: str, local: torch.Tensor, layout: Layout | None
) -> Iterator[str]:
    """A layout has as many local elements as the tensor, and sums over axes that there are."""
    if layout is None:
        return
    if math.prod(layout.local_shape) != local.numel():
        yield (
            f"{what} has a layout with {list(layout.local_shape)} on this rank, "
            f"the tensor is {list(local.shape)}"
        )
    if not layout.partial:
        return
    for axis in {*layout.partial} - {*adapter.coordinates().axes}:
        yield f"{what} is a term of a sum over {axis}, which is no axis of the coordinates"


def part_faults(adapter: Adapter, kind: Kind, parameter: Parameter) -> Iterator[str]:
    """Parts carry the parameter's name, and layouts that fit."""
    name = f"{parameter.module}.{parameter.name}".lstrip(".")
    for part in adapter.parts(kind, parameter):
        what = f"the {kind.value} part {part.slot} of {name}"
        if part.slot.split(".")[0] != parameter.name.split(".")[0]:
            yield f"{what} does not begin with the parameter's name"
        local, own = adapter.to_local(part.tensor)
        yield from layout_faults(adapter, what, local, own or part.layout)


def boundary_faults(
    adapter: Adapter, module: nn.Module, kind: Kind, slot: str, tensor: torch.Tensor, what: str
) -> Iterator[str]:
    """Where a tensor belongs fits its shape: order of dims, dim of the samples, layout, rows."""
    found = adapter.boundary(module, kind, slot, tensor)
    if found is None:
        return
    local, own = adapter.to_local(tensor)
    if not found.slot:
        yield f"{what} has an empty slot"
    if found.dims and sorted(found.dims) != list(range(local.dim())):
        yield f"{what} is recorded by dims {found.dims}, it has {local.dim()}"
    if found.rows:
        for sent in found.rows:
            yield from _sent_faults(adapter, what, local, sent)
        return
    yield from layout_faults(adapter, what, local, own or found.layout)
    dims = _recorded_dims(local, own, found)
    if found.batch_dim not in (None, NO_BATCH) and found.batch_dim not in range(dims):
        yield f"the samples of {what} are in dim {found.batch_dim} of {dims}"


def _recorded_dims(local: torch.Tensor, own: Layout | None, found: BoundarySpec) -> int:
    return local.dim() if own is not None or found.layout is None else len(found.layout.shape)


def _sent_faults(
    adapter: Adapter, what: str, local: torch.Tensor, sent: SentTokens
) -> Iterator[str]:
    places = math.prod(sent.layout.local_shape) // max(1, math.prod(local.shape[1:]))
    if len(sent.rows) != len(sent.places):
        yield f"{what} has {len(sent.rows)} rows of rank {sent.origin}, {len(sent.places)} places"
    if sent.rows.numel() and not 0 <= int(sent.rows.min()) <= int(sent.rows.max()) < len(local):
        yield f"{what} has rows of rank {sent.origin} beyond its {len(local)}"
    if sent.places.numel() and not 0 <= int(sent.places.min()) <= int(sent.places.max()) < places:
        yield f"{what} has places of rank {sent.origin} beyond the {places} of its layout"


def _shares_memory(adapter: Adapter, name: str, tensor: torch.Tensor) -> Iterator[str]:
    """Perturbed and isolated runs write into a parameter through its local tensor."""
    local, _ = adapter.to_local(tensor)
    if not local.numel():
        return
    before = local.clone()
    local.zero_()
    seen = adapter.to_local(tensor)[0].clone()
    local.copy_(before)
    if not bool((seen == 0).all()):
        yield f"to_local of {name} is a copy: what is written there does not reach the parameter"


def hooks_are_known(adapter: Adapter) -> Iterator[str]:
    """Every public method is one that capture calls, with the arguments that it gives."""
    if not isinstance(getattr(adapter, "name", None), str) or not adapter.name:
        yield "an adapter needs a name, which traces keep"
    for name, value in _public_methods(adapter).items():
        if name not in HOOKS:
            near = difflib.get_close_matches(name, HOOKS, n=1)
            meant = f"; did you mean {near[0]}?" if near else ""
            yield f"nothing calls {name}{meant} (a method of your own begins with an underscore)"
            continue
        expected, found = (
            list(inspect.signature(function).parameters)
            for function in (getattr(Adapter, name), value)
        )
        if expected != found:
            yield f"{name} takes {', '.join(found)}, where {', '.join(expected)} is given"


def _public_methods(adapter: Adapter) -> dict[str, Any]:
    """Those of its own classes, which do not stand above Adapter."""
    mine = [kind for kind in type(adapter).__mro__ if not issubclass(Adapter, kind)]
    members = {name: value for kind in mine for name, value in vars(kind).items()}
    return {n: value for n, value in members.items() if not n.startswith("_") and callable(value)}


def coordinates_are_within_sizes(adapter: Adapter) -> Iterator[str]:
    """Each index lies within its size, and the rank is the one of the process group."""
    known = adapter.coordinates()
    indices = {"the rank": (known.rank, known.world_size)}
    indices |= {f"axis {axis}": at for axis, at in known.axes.items()}
    indices |= {"the batch": known.batch} if known.batch is not None else {}
    for what, (index, size) in indices.items():
        if not 0 <= index < size:
            yield f"{what} has index {index} of {size}"
    if dist.is_initialized() and (known.rank, known.world_size) != _group():
        yield f"rank {known.rank} of {known.world_size}, torch.distributed says {_group()}"
    if known != adapter.coordinates():
        yield "coordinates differ from one call to the next"
    for path in {*known.vocabulary} - {path for path, _ in adapter.modules()}:
        yield f"the vocabulary is in {path!r}, which is no module"
    yield from _loss_faults(adapter, known)


def _loss_faults(adapter: Adapter, known: Coordinates) -> Iterator[str]:
    if known.loss_parts is not None and known.loss_parts < 1:
        yield f"gradients are averaged over {known.loss_parts} ranks"
    layout = adapter.loss_layout()
    if layout is not None and layout.shape != ():
        yield f"the loss, a number, has a layout of {list(layout.shape)}"


def modules_have_unique_paths(adapter: Adapter) -> Iterator[str]:
    """Each root comes first; below it no path and no module comes twice."""
    listed = list(adapter.modules())
    if not listed or listed[0][0] != "":
        yield f"the root, of an empty path, comes first; found {listed[0][0] if listed else None!r}"
    paths: set[str] = set()
    seen: set[int] = set()
    for path, module in listed:
        paths = paths if path else set()  # a further root begins anew
        if path in paths:
            yield f"{path} is the path of two modules"
        if id(module) in seen:
            yield f"{path} is a module that was listed before"
        paths.add(path)
        seen.add(id(module))
        yield from _module_faults(adapter, path, module)
    if listed != list(adapter.modules()):
        yield "modules differ from one call to the next"
    if adapter.is_rehearsal():
        yield "outside of any step is no rehearsal"


def _module_faults(adapter: Adapter, path: str, module: nn.Module) -> Iterator[str]:
    if adapter.written_class(module) not in type(module).__mro__:
        yield f"{path} is no {adapter.written_class(module).__name__}, as written_class says"
    edges = adapter.edges(module)
    if not (isinstance(edges, tuple) and [type(edge) for edge in edges] == [bool, bool]):
        yield f"edges of {path} are two bools, found {edges!r}"


def parameters_are_unique(adapter: Adapter) -> Iterator[str]:
    """Every parameter of a listed module has one name, that of a listed module.

    The exception is a tied parameter of which another rank holds the first user: it names users.
    """
    modules = list(adapter.modules())
    paths = {path for path, _ in modules}
    names: set[tuple[str, str]] = set()
    tensors: set[int] = set()
    for parameter in adapter.parameters():
        name = f"{parameter.module}.{parameter.name}".lstrip(".")
        if (parameter.module, parameter.name) in names:
            yield f"{name} is the name of two parameters"
        if id(parameter.tensor) in tensors:
            yield f"{name} is a parameter that was listed before"
        if parameter.module not in paths and not parameter.users:
            yield f"{name} belongs to {parameter.module!r}, which is no module"
        names.add((parameter.module, parameter.name))
        tensors.add(id(parameter.tensor))
    for path, module in modules:
        for name, tensor in module.named_parameters(recurse=False):
            if id(tensor) not in tensors:
                yield f"{path}.{name} is not among the parameters".replace(" .", " ")


def _group() -> tuple[int, int]:
    return dist.get_rank(), dist.get_world_size()
