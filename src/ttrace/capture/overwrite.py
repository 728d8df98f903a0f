"""The reference's values for an isolated run, cut to what this rank holds.

A value that is still a partial sum over ranks, or to which every microbatch adds, gets each element
whole on one pseudo-random owner and zero elsewhere: the sum is exact, and a reduction that is
missing, doubled, averaged or taken from one rank shows. A reference in the same layout has such
terms itself: then each rank gets its own.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
import xxhash

from ttrace.adapters.base import Adapter, SentTokens
from ttrace.capture.noise import Noise
from ttrace.core.ids import Kind, TensorId, root_of, roots_of
from ttrace.core.layout import Layout
from ttrace.core.logical import LogicalTensor
from ttrace.trace.blocks import BlockReader, blocks, common_dtype
from ttrace.trace.plan import IsolationPlan, PositionKey
from ttrace.trace.spans import SpanReader


class Backward(NamedTuple):
    """What may have a scale of its own: the backward of one loss through one microbatch."""

    root: str
    asked: bool
    turn: int
    microbatch: int


class Overwriter:
    """Reads from the reference what this rank would hold if it were correct."""

    def __init__(self, plan: IsolationPlan, adapter: Adapter, noise: Noise | None) -> None:
        self._plan = plan
        self.modules = plan.modules  # at whose boundaries values are overwritten; None: at all
        self._adapter = adapter
        self._noise = noise
        coordinates = adapter.coordinates()
        self._rank, self._axes = coordinates.rank, coordinates.axes
        self._roots = roots_of(path for path, _ in adapter.modules())
        self._scales: dict[Backward, float] = {}
        self._spans = SpanReader(plan.reference)
        self._reader = BlockReader(self._spans)

    def value(
        self,
        id_: TensorId,
        microbatch: int,
        like: torch.Tensor,
        position_id: TensorId,
        inner: Layout | None,
        dims: tuple[int, ...] = (),
    ) -> torch.Tensor | None:
        """The reference's values of `id_` in the form of `like`; None where it has none that fit.

        `position_id` is the id whose position in the logical tensor is known: a gradient whose own
        position is not sits where its value does, unless it knows its own layout (`inner`). `dims`
        is the order in which the tensor's dims were recorded.
        """
        is_kept = id_ in self._plan.kept
        result = self._probed(id_, microbatch, like) if is_kept else None
        if not is_kept:
            result = self._cut(id_, microbatch, like, position_id, inner, dims)
        if result is None or self._noise is None:
            return result
        return self._noise.on(result, f"{id_}@{microbatch}")

    def close(self) -> None:
        """Read nothing more."""
        self._spans.close()

    def _probed(self, id_: TensorId, microbatch: int, own: torch.Tensor) -> torch.Tensor:
        """This run's own values, with an error where the plan asks for one."""
        local = self._adapter.to_local(own)[0].detach().clone()
        size = self._plan.probes.get(id_)
        if size is not None and local.is_floating_point():
            generator = torch.Generator().manual_seed(_seed(f"{id_}@{microbatch}"))
            wide = local.double()
            error = torch.randn(tuple(local.shape), generator=generator, dtype=torch.float64)
            rms = wide.square().mean().sqrt()
            local = (wide + size * rms * error.to(local.device)).to(local.dtype)
        return self._adapter.wrap_like(local, like=own)

    def fill(
        self, id_: TensorId, tensor: torch.Tensor, *, noisy: bool, layout: Layout | None = None
    ) -> None:
        """Overwrite, in place, what belongs to a parameter, or to the step as a whole."""
        cut = self.value if noisy else self._cut
        values = cut(id_, 0, tensor, id_, layout)
        if values is not None:
            with torch.no_grad():
                self._adapter.to_local(tensor)[0].copy_(self._adapter.to_local(values)[0])

    def sent(
        self,
        id_: TensorId,
        microbatch: int,
        like: torch.Tensor,
        position_id: TensorId,
        rows: Sequence[SentTokens],
    ) -> torch.Tensor | None:
        """The same as `value` for tokens that several ranks sent here, each from its place there.

        A token that the reference did not send here gets zeros.
        """
        local, _ = self._adapter.to_local(like)
        result = torch.zeros_like(local)
        for part in rows:
            layout, share = self._sits(id_, microbatch, position_id, part.layout, part.origin)
            if layout is None:
                return None
            dense = self._values(id_, microbatch, layout, share, None).to(local.dtype)
            flat = dense.view(-1, *local.shape[1:])
            result[part.rows] = flat[part.places.cpu()].to(local.device)
        result = self._adapter.wrap_like(result, like=like)
        return result if self._noise is None else self._noise.on(result, f"{id_}@{microbatch}")

    def _cut(
        self,
        id_: TensorId,
        microbatch: int,
        like: torch.Tensor,
        position_id: TensorId,
        inner: Layout | None = None,
        dims: tuple[int, ...] = (),
    ) -> torch.Tensor | None:
        local, own = self._adapter.to_local(like)
        layout, share = self._sits(id_, microbatch, position_id, own or inner, None)
        if layout is None or math.prod(layout.local_shape) != local.numel():
            return None
        cut = torch.empty_like(local)
        values = self._values(id_, microbatch, layout, share, local)
        cut.copy_(_as_held(values, local.shape, dims))
        if layout.volume < local.numel():  # the reference has nothing for padding
            held = _as_held(_is_held(layout), local.shape, dims).to(local.device)
            cut = torch.where(held, cut, local)
        return self._adapter.wrap_like(cut, like=like)

    def _sits(
        self,
        id_: TensorId,
        microbatch: int,
        position_id: TensorId,
        inner: Layout | None,
        origin: int | None,
    ) -> tuple[Layout | None, tuple[int, int]]:
        """The layout of this rank's part of the reference's tensor, or None, and its share."""
        tensor, positions = self._plan.tensors.get(id_), self._plan.positions
        position = positions.get(PositionKey(id_, microbatch, origin))
        position = position or positions.get(PositionKey(position_id, microbatch, origin))
        if tensor is None or position is None or _is_shared_scalar(id_, tensor):
            return None, (0, 1)
        if inner is not None and id_ in self._plan.crops:
            inner = inner.crop(*self._plan.crops[id_])
        layout = position.layout if inner is None else _then(position.outer, inner)
        if layout is None or layout.shape != tensor.shape:
            return None, (0, 1)
        return layout, position.share

    def _values(
        self,
        id_: TensorId,
        microbatch: int,
        layout: Layout,
        share: tuple[int, int],
        found: torch.Tensor | None,
    ) -> torch.Tensor:
        """The reference's values in this layout.

        `found` is what this rank has: it gives the dtype, and a first gradient tells the scale.
        """
        tensor = self._plan.tensors[id_]
        term = self._own_term(tensor, layout, microbatch)
        values = self._read(id_, layout) if term is None else term
        values = values if found is None else values.to(found.dtype)
        if id_.kind.is_gradient_of_activation or id_.kind is Kind.GRAD:
            told = found if not layout.partial and share[1] == 1 else None
            root = root_of(id_.module, self._roots)
            backward = Backward(root, id_.asked, id_.turn, microbatch)
            scale = self._scale_of(backward, told, values)
            values = (values.to(torch.float32) * scale).to(values.dtype)
            values = self._owned(values, f"{id_}", *share) if share[1] > 1 else values
        return values if term is not None else self._partial(values, f"{id_}@{microbatch}", layout)

    def _scale_of(
        self, backward: Backward, found: torch.Tensor | None, expected: torch.Tensor
    ) -> float:
        """The factor by which this rank scaled the loss of a backward; its first gradient tells.

        The loss was computed from the reference's output, whatever is wrong in the model.
        """
        if backward not in self._scales and found is not None:
            wide = expected.double().flatten()
            size = float(wide @ wide)
            gain = float(found.cpu().double().flatten() @ wide) / size if size else 0.0
            if gain and math.isfinite(gain):
                self._scales[backward] = self._plan.scales.of(gain)
        return self._scales.get(backward, self._plan.scales.likely)

    def _own_term(
        self, tensor: LogicalTensor, layout: Layout, microbatch: int
    ) -> torch.Tensor | None:
        """This rank's own term of a partial sum, where the reference was made of the same terms.

        Other terms with the same sum would be added to others in another order.
        """
        terms = [
            record
            for piece in (*tensor.pieces, *tensor.replicas)
            if layout.partial and piece.layout == layout and not piece.recompute
            if len(piece.records) == self._count(layout)
            for record in piece.records
            if (record.rank, record.microbatch) == (self._rank, microbatch)
        ]
        return self._spans.load(terms[0]) if terms else None

    def _read(self, id_: TensorId, layout: Layout) -> torch.Tensor:
        tensor = self._plan.tensors[id_]
        values = torch.zeros(layout.local_shape, dtype=common_dtype(tensor.pieces))
        for start, stop in blocks(tensor.shape):
            meeting = list(layout.pieces(start, stop))
            if meeting:
                block = self._reader.read(tensor.pieces, tensor.shape, start, stop)
                for local, inside in meeting:
                    values[local] = block[inside]
        return values

    def _partial(self, values: torch.Tensor, key: str, layout: Layout) -> torch.Tensor:
        index, count = 0, self._count(layout)
        for axis in layout.partial:
            mine, size = self._axes.get(axis, (0, 1))
            index = index * size + mine
        return self._owned(values, key, index, count) if count > 1 else values

    def _count(self, layout: Layout) -> int:
        return math.prod(self._axes.get(axis, (0, 1))[1] for axis in layout.partial)

    def _owned(self, values: torch.Tensor, key: str, index: int, count: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(_seed(key))
        owner = torch.randint(count, tuple(values.shape), generator=generator)
        return torch.where(owner == index, values, torch.zeros((), dtype=values.dtype))


def _seed(key: str) -> int:
    return xxhash.xxh3_64_intdigest(key.encode()) >> 1


def _is_shared_scalar(id_: TensorId, tensor: LogicalTensor) -> bool:
    """Whether this is one number that all microbatches add to: no rank can get a part of it."""
    return not tensor.shape and (id_.kind.is_activation or id_.kind is Kind.LOSS)


def _as_held(values: torch.Tensor, shape: torch.Size, dims: tuple[int, ...]) -> torch.Tensor:
    """Values in the shape and order of dims of the tensor, not those that it was recorded in."""
    if not dims:
        return values.reshape(shape)
    order = sorted(range(len(dims)), key=dims.__getitem__)
    return values.reshape([shape[dim] for dim in dims]).permute(order)


def _then(outer: Layout, inner: Layout) -> Layout | None:
    if math.prod(inner.shape) == 0 or inner.shape != outer.local_shape:
        return None
    return outer.then(inner)


def _is_held(layout: Layout) -> torch.Tensor:
    """A mask that is true where the layout holds something and false in its padding."""
    found = torch.zeros(layout.local_shape, dtype=torch.bool)
    for local, _ in layout.pieces([0] * len(layout.shape), layout.shape):
        found[local] = True
    return found
