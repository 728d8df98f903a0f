"""Promises about what an adapter answers before any step: hooks, coordinates, names.

Each function takes an adapter and yields a sentence for everything that is wrong.
"""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Iterator

import torch.distributed as dist
from torch import nn

from ttrace.adapters.base import Adapter

HOOKS = frozenset(
    name for name in dir(Adapter) if not name.startswith("_") and callable(getattr(Adapter, name))
)


def hooks_are_known(adapter: Adapter) -> Iterator[str]:
    """Every public method is one that capture calls, with the arguments that it gives."""
    if not isinstance(getattr(adapter, "name", None), str) or not adapter.name:
        yield "an adapter needs a name, which traces keep"
    mine = [kind for kind in type(adapter).__mro__ if not issubclass(Adapter, kind)]
    for name, value in {name: value for kind in mine for name, value in vars(kind).items()}.items():
        if name.startswith("_") or not callable(value):
            continue
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
    if known.loss_parts is not None and known.loss_parts < 1:
        yield f"gradients are averaged over {known.loss_parts} ranks"
    if known != adapter.coordinates():
        yield "coordinates differ from one call to the next"
    for path in {*known.vocabulary} - {path for path, _ in adapter.modules()}:
        yield f"the vocabulary is in {path!r}, which is no module"
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
