"""What a model's own `sharded_state_dict` says of its parameters' layouts: a second opinion.

Enters: a model chunk. Leaves: layouts of the parameters that it describes, and, against those that
classes and attributes gave, what disagrees. It is written by whoever wrote the module, so it also
knows modules that no table does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import Parameter
from ttrace.core.ids import display_module
from ttrace.core.layout import Layout, Run


def sharded_layouts(chunk: nn.Module) -> tuple[dict[int, Layout], str]:
    """By address of the values; none where the model cannot say, with a sentence if it fails to."""
    if not hasattr(chunk, "sharded_state_dict"):
        return {}, ""
    try:
        found = chunk.sharded_state_dict()  # type: ignore[operator]
    except Exception as error:  # noqa: BLE001  (the user's code, asked for no purpose of the user's)
        why = f"{type(error).__name__}: {error}"
        return {}, f"layouts are not checked against sharded_state_dict, which failed: {why}"
    layouts: dict[int, Layout] = {}
    for entry in _leaves(found):
        data = getattr(entry, "data", None)
        if not isinstance(data, torch.Tensor):
            continue
        layout = _layout(entry, tuple(data.shape))
        if layout is not None and layout.local_shape == tuple(data.shape):
            layouts[data.data_ptr()] = layout
    return layouts, ""


def disagreements(
    parameters: Sequence[tuple[Parameter, Layout | None]], sharded: Mapping[int, Layout]
) -> Iterator[str]:
    """A sentence for each parameter that the model shards otherwise than it is laid out here."""
    for parameter, used in parameters:
        told = sharded.get(parameter.tensor.data_ptr())
        if told is not None and used is not None and told != used:
            yield (
                f"{display_module(parameter.module)}.{parameter.name} is laid out as {used} of "
                f"{list(used.shape)}, but sharded_state_dict says {told} of {list(told.shape)}"
            )


def layout_told(parameter: nn.Parameter, sharded: Mapping[int, Layout]) -> Layout | None:
    """For a parameter that nothing else knows; whole is what the dict says by default too."""
    told = sharded.get(parameter.data_ptr())
    return None if told is None or told.is_full else told


def _leaves(found: Any) -> Iterator[Any]:
    if isinstance(found, Mapping):
        for value in found.values():
            yield from _leaves(value)
    elif isinstance(found, (list, tuple)):
        for value in found:
            yield from _leaves(value)
    else:
        yield found


def _layout(entry: Any, shape: tuple[int, ...]) -> Layout | None:
    """Layers and experts are dims in front of the parameter's own."""
    build = getattr(entry, "build", None)
    parts = list(_leaves(build())) if callable(build) else [entry]
    keys = {
        (getattr(part, "key", None), tuple(getattr(part, "global_shape", ()))) for part in parts
    }
    dims = len(shape)
    if len(keys) > 1 or not all(_is_plain(part, dims) for part in parts):
        return None
    whole = tuple(parts[0].global_shape[-dims:]) if dims else ()
    runs = []
    for dim in range(dims):
        at = [Run(part.global_offset[-dims + dim], part.local_shape[dim]) for part in parts]
        runs.append(at if len(set(at)) > 1 else at[:1])
    return Layout(shape=whole, runs=tuple(tuple(of_dim) for of_dim in runs))


def _is_plain(part: Any, dims: int) -> bool:
    is_flat = getattr(part, "flattened_range", None) is not None
    return not is_flat and len(getattr(part, "local_shape", ())) == dims > 0
