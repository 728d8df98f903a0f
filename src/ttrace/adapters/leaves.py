"""The tensors inside what a module takes and returns, by slot, and how to replace them.

Tuples, lists, mappings, named tuples and dataclasses, nested as they come:

    (x, {"mask": m})  ->  0: x, 1.mask: m
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import torch


def leaves(value: Any, slot: str = "") -> Iterator[tuple[str, torch.Tensor]]:
    """Every tensor with its slot; a bare tensor has slot 0, like the first of a tuple."""
    if isinstance(value, torch.Tensor):
        yield slot or "0", value
        return
    for name, child in _children(value):
        yield from leaves(child, f"{slot}.{name}" if slot else name)


def input_leaves(
    args: tuple[Any, ...], kwargs: dict[str, Any]
) -> Iterator[tuple[str, torch.Tensor]]:
    yield from leaves(args)
    yield from leaves(kwargs)


def map_leaves(
    value: Any, change: Callable[[str, torch.Tensor], torch.Tensor], slot: str = ""
) -> Any:
    """The same structure with every tensor changed; the original is left as it was."""
    if isinstance(value, torch.Tensor):
        return change(slot or "0", value)
    children = {
        name: map_leaves(child, change, f"{slot}.{name}" if slot else name)
        for name, child in _children(value)
    }
    if all(children[name] is child for name, child in _children(value)):
        return value
    if isinstance(value, Mapping):
        changed: Any = copy.copy(value)
        for key in value:
            changed[key] = children[str(key)]
        return changed
    if isinstance(value, (tuple, list)):
        items = list(children.values())
        return type(value)(*items) if hasattr(value, "_fields") else type(value)(items)
    return dataclasses.replace(value, **children)


def _children(value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        yield from ((str(key), child) for key, child in value.items())
    elif isinstance(value, (tuple, list)):
        yield from ((str(index), child) for index, child in enumerate(value))
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = (field.name for field in dataclasses.fields(value) if field.init)
        yield from ((name, getattr(value, name)) for name in fields)
