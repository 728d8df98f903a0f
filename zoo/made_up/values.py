"""Values of a step that nobody ran: random ones that belong together as those of a run do.

Enters: a tensor of the step and the place of a rank. Leaves: its values, whole or as this rank has
them: its shard, its term of a sum, of its samples; all with the noise of a run. Gradients before
their reduction are larger by the number of data-parallel ranks, whose losses are means of their own
samples. Nothing is kept: a value depends on its name alone.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass

import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from zoo.made_up.step import VOCABULARY, Shape, Tensor

_NOISE = 2.0**-18  # chosen: of every element; far above the rounding of terms in float32
_POOL = 1 << 22  # chosen: random numbers that are drawn once; a tensor is a stretch of them
_CLIPPED, _RATE, _AVERAGED, _SQUARED = 0.5, 1e-3, 0.1, 1e-3  # chosen: of an update like Adam's


@dataclass(frozen=True, slots=True, kw_only=True)
class Mesh:
    """Of the candidate: tensor-parallel ranks are neighbours; as many samples as `dp`.

    A pipeline stage has its share of the layers, and all ranks of a stage follow each other.
    """

    tp: int
    dp: int
    pp: int = 1

    @property
    def ranks(self) -> int:
        return self.pp * self.stage_ranks

    @property
    def stage_ranks(self) -> int:
        """How many ranks a pipeline stage has."""
        return self.tp * self.dp

    def place(self, rank: int) -> tuple[int, int]:
        """Among data-parallel ranks, and among tensor-parallel ones."""
        return divmod(rank % self.stage_ranks, self.tp)


@dataclass(frozen=True, slots=True, eq=False)
class Shard:
    """What one rank has of a tensor; `layout` None where it does not say where that sits."""

    values: torch.Tensor
    layout: Layout | None


class Values:
    """The values of one run: those of the same name differ between runs by their noise only."""

    def __init__(self, run: str, mesh: Mesh) -> None:
        self._run, self._mesh = run, mesh
        self._pool = torch.randn(_POOL, generator=torch.Generator().manual_seed(0))

    def whole(self, tensor: Tensor) -> torch.Tensor:
        """All samples, all columns, every term added."""
        exact = self._exact(tensor)
        if not exact.is_floating_point() or tensor.id.kind is Kind.PARAM or not tensor.shape:
            return exact  # what a run begins with is the same in all
        return exact * (1 + _NOISE * self._draw(f"noise {self._run} {tensor.id}", exact.shape))

    def shard(self, tensor: Tensor, whole: torch.Tensor, rank: int) -> Shard:
        """What a rank has of the whole."""
        at, index = self._mesh.place(rank)
        values, kind = whole, tensor.id.kind
        if kind.is_activation:
            values = values[at : at + 1]
        if kind in (Kind.GRAD, Kind.LOSS):
            values = self._term(tensor.id, values, at, self._mesh.dp)
        if kind.is_gradient_of_activation or kind in (Kind.GRAD, Kind.LOSS):
            values = values * self._mesh.dp
        layout = Layout.full(values.shape)
        if tensor.is_partial:
            values = self._term(tensor.id, values, index, self._mesh.tp)
            layout = Layout(shape=layout.shape, runs=layout.runs, partial=("tp",))
        elif tensor.split is not None:
            dim = tensor.split + kind.is_activation
            values = values.chunk(self._mesh.tp, dim)[index].contiguous()
            layout = layout.shard(dim, index, self._mesh.tp)
        return Shard(values, layout if tensor.knows_place and self._mesh.tp > 1 else None)

    def is_shared(self, tensor: Tensor) -> bool:
        """Whether all data-parallel ranks have the same."""
        return not (tensor.id.kind.is_activation or tensor.id.kind in (Kind.GRAD, Kind.LOSS))

    def _exact(self, tensor: Tensor) -> torch.Tensor:
        id_, shape = tensor.id, tensor.shape
        shape = (self._mesh.dp, *shape) if id_.kind.is_activation else shape
        if not id_.module and id_.kind is Kind.INPUT:
            generator = torch.Generator().manual_seed(1)
            return torch.randint(VOCABULARY, shape, generator=generator)
        if id_.kind.is_activation or not shape:
            return self._draw(str(id_), shape) if shape else torch.ones(())
        slot, _, end = id_.slot.partition(".")
        gradient = self._draw(f"{id_.module} {slot} gradient", shape)
        if id_.kind in (Kind.PARAM, Kind.PARAM_AFTER):
            before = self._draw(f"{id_.module} {slot}", shape)
            return before if id_.kind is Kind.PARAM else before - _RATE * gradient
        if id_.kind is Kind.OPTIMIZER:
            return _SQUARED * gradient**2 if end == "exp_avg_sq" else _AVERAGED * gradient
        return gradient * _CLIPPED if id_.kind is Kind.CLIPPED_GRAD else gradient

    def _term(self, id_: TensorId, values: torch.Tensor, index: int, count: int) -> torch.Tensor:
        """One of so many that add up to the values."""
        mine, next_ = (
            self._draw(f"{id_} term {number % count}", values.shape)
            for number in (index, index + 1)
        )
        return values / count + (mine - next_ if count > 1 else 0)

    def _draw(self, name: str, shape: Shape) -> torch.Tensor:
        count = torch.Size(shape).numel()
        start = zlib.crc32(name.encode()) % (_POOL - count)
        return self._pool[start : start + count].view(shape)
