"""A tensor that is met again: whether anything changed it since, and how its record reads then.

Autograd counts changes in place, by the version of a tensor object. Collectives write into tensors
behind its back: how many were made is asked for as well.
"""

from __future__ import annotations

import itertools
import weakref
from typing import Any, Generic, TypeVar

import torch
import torch.distributed as dist

from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.record import Record

_T = TypeVar("_T")
_UNKNOWN = itertools.count(-1, -1)


class ObjectMemory(Generic[_T]):
    """A map from tensor objects; an in-place change or the end of the object forgets the entry."""

    def __init__(self) -> None:
        self._seen: dict[int, tuple[weakref.ref[torch.Tensor], int, _T]] = {}

    def find(self, tensor: torch.Tensor) -> _T | None:
        seen = self._seen.get(id(tensor))
        if seen is None:
            return None
        reference, version, value = seen
        if reference() is not tensor or version != _version(tensor):
            return None
        return value

    def keep(self, tensor: torch.Tensor, value: _T) -> None:
        self._seen[id(tensor)] = (weakref.ref(tensor), _version(tensor), value)

    def clear(self) -> None:
        self._seen.clear()


def _version(tensor: torch.Tensor) -> int:
    # Inference tensors have no version counter; nothing can change them in place under autograd.
    return 0 if tensor.is_inference() else tensor._version  # noqa: SLF001


def collectives_made() -> int:
    """The same number as long as no collective was made; another each time where nobody knows."""
    if not (dist.is_available() and dist.is_initialized()):
        return 0
    try:
        world: Any = dist.distributed_c10d._world  # noqa: SLF001
        return sum(group._get_sequence_number_for_group() for group in world.pg_map)  # noqa: SLF001
    except (AttributeError, RuntimeError):  # no public way to ask, and not every backend counts
        return next(_UNKNOWN)


def met_again(met: Record, said: Layout | None, known: Record) -> Record | None:
    """The record of a tensor that is met again, under the bytes that it has already.

    None where it is another term of a sum than before.
    """
    if not _is_same_sum(known, met.id, said):
        return None
    return Record(  # `replace` takes five times as long
        id=met.id,
        rank=known.rank,
        sequence=met.sequence,
        dtype=known.dtype,
        shape=known.shape,
        microbatch=met.microbatch,
        recompute=met.recompute,
        layout=known.layout,
        batch_dim=known.batch_dim,
        origin=known.origin,
        same_as=known.same_as or known.id,
        location=known.location,
        payload=known.payload,
    )


def is_of_layers(id_: TensorId) -> bool:
    """Whether only layers write into it; optimizers change parameters unseen."""
    return id_.kind.is_activation or id_.kind.is_gradient_of_activation


def _is_same_sum(record: Record, id_: TensorId, layout: Layout | None) -> bool:
    """Whether a tensor that is met again is a term of the same sum over ranks as it was before.

    A gradient that should be summed by now is another tensor, even if nothing changed it. An
    activation that is met again without a layout keeps the layout that its first record has.
    """
    known = () if record.layout is None else record.layout.partial
    if layout is None:
        return id_.kind.is_activation or not known
    return layout.partial == known
