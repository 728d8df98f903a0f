"""Terms of sums over ranks as they are sent: in fewer bits than gradients have, if that is asked.

    FSDP with reduce_dtype=bfloat16     a gradient in float32 is put into a buffer in bfloat16
    a hook that compresses gradients    a bucket is cast, and reduced as it is

Each rank of a candidate rounds a term of its own, and the sum of them is rounded again, while a
reference on one rank rounds once. No module boundary shows that. In a perturbed run what is sent in
two bytes gets noise of its own dtype.

Enters: an operator with its arguments. Leaves: the tensors among them that are sent.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import Tensor

_TWO_BYTES = 2


def _packed(args: Sequence[Any], kwargs: Mapping[str, Any]) -> Sequence[Any]:
    """What FSDP packs its gradients into; the same on one rank, where nothing is sent."""
    return [kwargs.get("out")] if _are_wider(args[0], kwargs.get("out")) else []


def _are_wider(gradients: Sequence[Tensor], buffer: Any) -> bool:
    return isinstance(buffer, Tensor) and gradients[0].dtype.itemsize > buffer.dtype.itemsize


# By name: torch has those of c10d only where it can be distributed.
_BEFORE: Mapping[str, Callable[[Sequence[Any]], Sequence[Any]]] = {
    "c10d::allreduce_": lambda args: args[0],
    "c10d::allreduce_coalesced_": lambda args: args[0],
    "c10d::_reduce_scatter_base_": lambda args: [args[1]],
}
_AFTER: Mapping[str, Callable[[Sequence[Any], Mapping[str, Any]], Sequence[Any]]] = {
    "fsdp::chunk_cat": _packed,
}


def is_sent(func: Any) -> bool:
    """Whether the operator sends terms, or makes what is sent."""
    name = func.name()
    return name in _BEFORE or name in _AFTER


def before(func: Any, args: Sequence[Any]) -> list[Tensor]:
    """Tensors that it is about to send; they may be changed in place."""
    find = _BEFORE.get(func.name())
    return [] if find is None else _narrow(find(args))


def after(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Tensor]:
    """Tensors that it has made to be sent."""
    find = _AFTER.get(func.name())
    return [] if find is None else _narrow(find(args, kwargs))


def _narrow(tensors: Sequence[Any]) -> list[Tensor]:
    return [
        each
        for each in tensors
        if isinstance(each, Tensor) and each.is_floating_point()
        if each.dtype.itemsize == _TWO_BYTES
    ]
