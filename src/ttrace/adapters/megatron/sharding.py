"""What a model's own `sharded_state_dict` says of its parameters' layouts: a second opinion.

Enters: a model chunk. Leaves: layouts of the parameters that it describes, and, against those that
classes and attributes gave, what disagrees. It is written by whoever wrote the module, so it also
knows modules that no table does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import nn

from ttrace.adapters.base import Parameter
from ttrace.adapters.megatron.layouts import part_of
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
        layout = _layout(entry, data)
        if layout is not None and layout.local_shape == tuple(data.shape):
            layouts[data.data_ptr()] = layout
    return layouts, ""


def used_layout(known: Layout | None, told: Layout | None) -> Layout | None:
    """What classes and attributes say counts, and of what they leave open what the dict says.

    They leave open parameters that they do not know, and whether one that is split consists of
    sections, each split by itself. Whole is what the dict says by default too.
    """
    if known is None:
        return None if told is None or told.is_full else told
    return told if told is not None and _has_sections_of(told, known) else known


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


def _has_sections_of(told: Layout, known: Layout) -> bool:
    """Whether both split the same dim into as large parts, one of them in several runs."""
    if (told.shape, told.local_shape) != (known.shape, known.local_shape):
        return False
    differing = [(t, k) for t, k in zip(told.runs, known.runs, strict=True) if t != k]
    return len(differing) == 1 and len(differing[0][0]) > len(differing[0][1]) == 1


def _leaves(found: Any) -> Iterator[Any]:
    if isinstance(found, Mapping):
        for value in found.values():
            yield from _leaves(value)
    elif isinstance(found, (list, tuple)):
        for value in found:
            yield from _leaves(value)
    else:
        yield found


def _layout(entry: Any, data: torch.Tensor) -> Layout | None:
    """Layers and experts are dims in front of the parameter's own."""
    build = getattr(entry, "build", None)
    parts = list(_leaves(build())) if callable(build) else [entry]
    dims = data.dim()
    if not all(_is_plain(part, dims) for part in parts):
        return None
    keys = {(getattr(part, "key", None), tuple(part.global_shape)) for part in parts}
    return _pieces(parts, dims) if len(keys) == 1 else _sections(parts, data)


def _pieces(parts: Sequence[Any], dims: int) -> Layout:
    """Pieces of one tensor of the checkpoint."""
    whole = tuple(parts[0].global_shape[-dims:])
    runs = []
    for dim in range(dims):
        at = [Run(part.global_offset[-dims + dim], part.local_shape[dim]) for part in parts]
        runs.append(at if len(set(at)) > 1 else at[:1])
    return Layout(shape=whole, runs=tuple(tuple(of_dim) for of_dim in runs))


def _sections(parts: Sequence[Any], data: torch.Tensor) -> Layout | None:
    """Tensors of their own in the checkpoint, which stand in the parameter side by side."""
    pieces = [_pieces([part], data.dim()) for part in parts]
    dim = next((dim for dim in range(data.dim()) if _are_side_by_side(parts, data, dim)), None)
    if dim is None:
        return None
    sizes = [piece.shape[dim] for piece in pieces]
    starts = accumulate(sizes, initial=0)
    runs = [
        Run(start + (run.start or 0), run.length)
        for start, piece in zip(starts, pieces, strict=False)
        for run in piece.runs[dim]
    ]
    return part_of(pieces[0], dim, Layout(shape=(sum(sizes),), runs=(tuple(runs),)))


def _are_side_by_side(parts: Sequence[Any], data: torch.Tensor, dim: int) -> bool:
    """Whether they are the parameter's own memory, all of it, in this order along the dim."""
    sizes = [part.local_shape[dim] for part in parts]
    if sum(sizes) != data.shape[dim]:
        return False
    return all(
        part.data.data_ptr() == here.data_ptr() and part.data.shape == here.shape
        for part, here in zip(parts, data.split(sizes, dim), strict=True)
    )


def _is_plain(part: Any, dims: int) -> bool:
    is_flat = getattr(part, "flattened_range", None) is not None
    has_data = isinstance(getattr(part, "data", None), torch.Tensor)
    return has_data and not is_flat and len(getattr(part, "local_shape", ())) == dims > 0
