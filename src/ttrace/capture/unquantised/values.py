"""Values before a cast: what codes of one byte were made from, for as long as the codes live.

    remember(x.to(torch.float8_e4m3fn), x)
    values_of(codes.T[:8])      the same part of x, transposed

Kept by storage, so that every view of codes finds its part, by whomever it was made: an element
of a storage of one-byte codes has a place, and its value lies in the same place of a flat tensor.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef

from ttrace.core.formats import format_of
from ttrace.trace.dtypes import dtype_name


def holds_codes(dtype: torch.dtype) -> bool:
    """Floating numbers of one byte; a dtype without a mantissa is for scales, which are exact."""
    if not (dtype.is_floating_point and dtype.itemsize == 1):
        return False
    known = format_of(dtype_name(dtype))
    return known is None or known.mantissa_bits > 0


class _Kept(NamedTuple):
    storage: StorageWeakRef  # keeps its address from being used for another storage
    flat: Tensor


class ValuesBefore:
    """Finds the values from which codes were made."""

    def __init__(self) -> None:
        self._kept: dict[int, _Kept] = {}
        self._many = 64  # chosen: how many are kept before the dead are looked for

    def remember(self, codes: Tensor, values: Tensor) -> None:
        """A copy is kept: whoever quantises may use the room of `values` again."""
        storage = codes.untyped_storage()
        place = StorageWeakRef(storage)
        known = self._kept.get(place.cdata)
        if known is None or known.flat.dtype != values.dtype:
            known = _Kept(place, self._flat(codes, values.dtype, known))
            self._kept[place.cdata] = known
        _part(known.flat, codes).copy_(values)
        self._forget_dead()

    def values_of(self, codes: Tensor) -> Tensor | None:
        """In the shape and strides of the codes; None where they were made by nothing seen."""
        known = self._kept.get(StorageWeakRef(codes.untyped_storage()).cdata)
        return None if known is None else _part(known.flat, codes)

    def forget(self, written: Tensor) -> None:
        """Somebody wrote other codes into this storage."""
        if self._kept:
            self._kept.pop(StorageWeakRef(written.untyped_storage()).cdata, None)

    def _flat(self, codes: Tensor, dtype: torch.dtype, known: _Kept | None) -> Tensor:
        if known is not None:
            return known.flat.to(dtype)
        storage = codes.untyped_storage()
        if storage.nbytes() == codes.numel():
            return torch.empty(storage.nbytes(), dtype=dtype, device=codes.device)
        whole = torch.empty(0, dtype=codes.dtype, device=codes.device)
        return whole.set_(storage, 0, (storage.nbytes(),), (1,)).to(
            dtype
        )  # what nobody told of is kept

    def _forget_dead(self) -> None:
        if len(self._kept) < self._many:
            return
        alive = {key: kept for key, kept in self._kept.items() if not kept.storage.expired()}
        self._kept, self._many = alive, max(64, 2 * len(alive))


def _part(flat: Tensor, codes: Tensor) -> Tensor:
    return flat.as_strided(codes.size(), codes.stride(), codes.storage_offset())
