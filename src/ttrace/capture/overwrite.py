"""The reference's values for an isolated run, cut to what this rank holds.

A value that is still a partial sum over ranks, or to which every microbatch adds, gets each element
whole on one pseudo-random owner and zero elsewhere: the sum is exact, and a reduction that is
missing, doubled, averaged or taken from one rank shows.
"""

from __future__ import annotations

import math

import torch
import xxhash

from ttrace.capture.noise import Noise
from ttrace.core.adapter import Adapter
from ttrace.core.blocks import BlockReader, blocks, common_dtype
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.plan import Plan
from ttrace.core.spans import SpanReader


class Overwriter:
    """Answers: what would the reference have here?"""

    def __init__(self, plan: Plan, adapter: Adapter, noise: Noise | None) -> None:
        self._plan = plan
        self._adapter = adapter
        self._noise = noise
        self._axes = adapter.place().axes
        self._reader = BlockReader(SpanReader(plan.reference))

    def value(
        self,
        id_: TensorId,
        microbatch: int,
        like: torch.Tensor,
        place_id: TensorId,
        inner: Layout | None,
        dims: tuple[int, ...] = (),
    ) -> torch.Tensor | None:
        """The reference's values of `id_` in the form of `like`; None where it has none that fit.

        `place_id` is the id whose place in the logical tensor is known: a gradient whose own is not
        sits where its value does, unless it knows its own layout (`inner`). `dims` is the order in
        which the tensor's dims were recorded.
        """
        tensor = self._plan.tensors.get(id_)
        places = self._plan.places
        place = places.get((id_, microbatch)) or places.get((place_id, microbatch))
        local, own = self._adapter.localise(like)
        if tensor is None or place is None or not tensor.shape:
            return None
        inner = own or inner
        layout = place.layout if inner is None else _then(place.outer, inner)
        if layout is None or layout.shape != tensor.shape:
            return None
        if math.prod(layout.local_shape) != local.numel():
            return None
        cut = torch.empty_like(local)
        scaled = id_.kind.is_gradient_of_activation or id_.kind is Kind.GRAD
        values = self._read(id_, layout, local.dtype)
        if scaled:
            values = (values.to(torch.float32) * self._plan.loss_scale).to(local.dtype)
            values = self._owned(values, f"{id_}", *place.share) if place.share[1] > 1 else values
        values = self._partial(values, f"{id_}@{microbatch}", layout)
        cut.copy_(_as_held(values, local.shape, dims))
        result = self._adapter.rewrap(cut, like=like)
        return result if self._noise is None else self._noise.on(result, f"{id_}@{microbatch}")

    def _read(self, id_: TensorId, layout: Layout, dtype: torch.dtype) -> torch.Tensor:
        tensor = self._plan.tensors[id_]
        values = torch.zeros(layout.local_shape, dtype=common_dtype(tensor.pieces))
        for start, stop in blocks(tensor.shape):
            meeting = list(layout.pieces(start, stop))
            if meeting:
                block = self._reader.read(tensor.pieces, tensor.shape, start, stop)
                for local, inside in meeting:
                    values[local] = block[inside]
        return values.to(dtype)

    def _partial(self, values: torch.Tensor, key: str, layout: Layout) -> torch.Tensor:
        index, count = 0, 1
        for axis in layout.partial:
            mine, size = self._axes.get(axis, (0, 1))
            index, count = index * size + mine, count * size
        return self._owned(values, key, index, count) if count > 1 else values

    def _owned(self, values: torch.Tensor, key: str, index: int, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(xxhash.xxh3_64_intdigest(key.encode()) >> 1)
        owner = torch.randint(count, tuple(values.shape), generator=generator)
        return torch.where(owner == index, values, torch.zeros((), dtype=values.dtype))


def _as_held(values: torch.Tensor, shape: torch.Size, dims: tuple[int, ...]) -> torch.Tensor:
    """From the shape and order of dims in which a tensor was recorded to its own."""
    if not dims:
        return values.reshape(shape)
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return values.reshape([shape[dim] for dim in dims]).permute(order)


def _then(outer: Layout, inner: Layout) -> Layout | None:
    if math.prod(inner.shape) == 0 or inner.shape != outer.local_shape:
        return None
    return outer.then(inner)
