"""Measuring: the statistics of one logical tensor against its reference, in one pass over both.

    activations [4, 128, 1024]  batch 0 (4), position 1 (128), channel 2 (1024), token 0,1 (512)
    a weight [4096, 1024]       row 0 (4096), column 1 (1024)

A slice fixes the index of one dim, or of every dim but the last (a row); of each family of slices
the one with the largest error is told. Dims of size 1 do not count; what has fewer than two others
has no slices but its elements.

Enters: pairs of equally shaped CPU tensors, block by block, in any dtype. Leaves: one frozen
`Statistics`. Whether its numbers are acceptable is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch

from ttrace.core.formats import grain
from ttrace.core.statistics import Slice, Statistics
from ttrace.errors import UsageError
from ttrace.measure.kernel import NO_SQUARES, Kernel, Squares, Sums, Vector, default_kernel

# Chosen: 8 MB of sums. A longer dim is not sliced by itself; its elements are looked at anyway.
_LONGEST = 1 << 20


class SliceSums:
    """Adds up squared errors by slice; its memory does not depend on the number of rows."""

    def __init__(self, shape: Sequence[int]) -> None:
        self._dims = [dim for dim, size in enumerate(shape) if size > 1]
        self._shape = tuple(shape)
        self._worst_row = Slice(dims=tuple(self._dims[:-1]), index=(), error_norm=-1.0)
        self._open: tuple[tuple[int, ...], float] | None = None  # a row that goes on
        # The only leading dim of a matrix is its rows.
        alone = self._dims if len(self._dims) > 2 else self._dims[1:]
        self._sums: dict[int, Vector] = {
            dim: np.zeros(shape[dim]) for dim in alone if shape[dim] <= _LONGEST
        }

    @property
    def wanted(self) -> bool:
        return len(self._dims) > 1 and math.prod(self._shape) > 0

    def squares(self, start: Sequence[int], size: Sequence[int]) -> Squares:
        """Where a kernel is to add the squares of one block."""
        last = self._dims[-1]
        columns = self._sums.get(last)
        return Squares(
            rows=np.zeros(math.prod(size) // size[last]),
            columns=None if columns is None else columns[start[last] : start[last] + size[last]],
        )

    def add(self, squares: Squares, start: Sequence[int], size: Sequence[int]) -> None:
        """The squares of one block, after a kernel has added to them."""
        assert squares.rows is not None
        *leading, last = self._dims
        rows = squares.rows.reshape([size[dim] for dim in leading])
        for axis, dim in enumerate(leading):
            if dim in self._sums:
                others = tuple(other for other in range(rows.ndim) if other != axis)
                self._sums[dim][start[dim] : start[dim] + size[dim]] += rows.sum(axis=others)
        if size[last] == self._shape[last]:
            place = np.unravel_index(int(rows.argmax()), rows.shape)
            index = tuple(start[dim] + int(at) for dim, at in zip(leading, place, strict=True))
            self._offer_row(index, float(rows[place]))
        else:
            self._continue_row(tuple(start[dim] for dim in leading), float(rows.sum()))

    def worst(self) -> tuple[Slice, ...]:
        """The worst row, then the worst slice of every dim."""
        if not self.wanted:
            return ()
        if self._open is not None:
            self._offer_row(*self._open)
        single = [
            Slice(
                dims=(dim,),
                index=(int(sums.argmax()),),
                error_norm=math.sqrt(float(sums.max())),
            )
            for dim, sums in self._sums.items()
        ]
        return (self._worst_row, *single)

    def _continue_row(self, index: tuple[int, ...], squared: float) -> None:
        """A row longer than a block comes in several, one after the other."""
        if self._open is not None and self._open[0] == index:
            squared += self._open[1]
        elif self._open is not None:
            self._offer_row(*self._open)
        self._open = (index, squared)

    def _offer_row(self, index: tuple[int, ...], squared: float) -> None:
        error_norm = math.sqrt(squared)
        if error_norm > self._worst_row.error_norm:
            self._worst_row = Slice(dims=self._worst_row.dims, index=index, error_norm=error_norm)


class Accumulator:
    """Adds up the statistics of one logical tensor from its pieces.

    With its shape it also tells where: then the pieces are blocks in row-major order. Without,
    pieces may come in any order.
    """

    __slots__ = ("_count", "_kernel", "_shape", "_slices", "_sums", "_ulp", "_worst")

    def __init__(self, kernel: Kernel | None = None, *, shape: Sequence[int] | None = None) -> None:
        self._kernel = default_kernel() if kernel is None else kernel
        self._count = 0
        self._sums = Sums()
        self._shape = None if shape is None else tuple(shape)
        self._slices = SliceSums(() if shape is None else shape)
        self._worst: tuple[int, ...] = ()
        self._ulp = True

    def update(
        self, reference: torch.Tensor, candidate: torch.Tensor, start: Sequence[int] = ()
    ) -> None:
        """A piece that is not contiguous is copied; keep those to about a million elements.

        `start` is the place of a block in the logical tensor.
        """
        if reference.shape != candidate.shape:
            raise UsageError(
                f"cannot compare a reference of shape {list(reference.shape)} with a candidate of "
                f"shape {list(candidate.shape)}: merge and slice both to the same piece first"
            )
        size = tuple(reference.shape)
        is_complex = reference.is_complex() or candidate.is_complex()
        if is_complex:
            reference, candidate = _as_real(reference), _as_real(candidate)
        self._ulp &= reference.dtype == candidate.dtype and reference.is_floating_point()
        reference, candidate = _flat(reference), _flat(candidate)
        self._count += reference.numel()
        if is_complex:
            self._shape = None  # parts of a number are no dim of the tensor
        if self._shape is None:
            self._kernel.add(reference[None], candidate[None], self._sums)
            return
        self._add_block(reference, candidate, tuple(start) or (0,) * len(size), size)

    def _add_block(
        self,
        reference: torch.Tensor,
        candidate: torch.Tensor,
        start: tuple[int, ...],
        size: tuple[int, ...],
    ) -> None:
        wanted = self._slices.wanted
        squares = self._slices.squares(start, size) if wanted else NO_SQUARES
        rows = 1 if squares.rows is None else squares.rows.size
        self._sums.worst = -1
        self._kernel.add(reference.view(rows, -1), candidate.view(rows, -1), self._sums, squares)
        if wanted:
            self._slices.add(squares, start, size)
        if self._sums.worst >= 0:
            inside = np.unravel_index(self._sums.worst, size)
            self._worst = tuple(a + int(b) for a, b in zip(start, inside, strict=True))

    def result(self) -> Statistics:
        sums = self._sums
        return Statistics(
            count=self._count,
            error_norm=math.sqrt(sums.error_squared),
            reference_norm=math.sqrt(sums.reference_squared),
            candidate_norm=math.sqrt(sums.candidate_squared),
            dot=sums.reference_squared + sums.error_dot,
            max_error=sums.max_error,
            peak=sums.peak,
            error_sum=sums.error_sum,
            nonfinite_reference=sums.nonfinite_reference,
            nonfinite_candidate=sums.nonfinite_candidate,
            unequal=sums.unequal,
            max_ulp=sums.max_ulp if self._ulp else None,
            worst_element=self._worst,
            slices=self._slices.worst() if self._shape and sums.error_squared else (),
            reference_grain=grain(sums.reference_grain),
            candidate_grain=grain(sums.candidate_grain),
        )


def _as_real(tensor: torch.Tensor) -> torch.Tensor:
    if not tensor.is_complex():
        return torch.stack([tensor, torch.zeros_like(tensor)], dim=-1)
    return torch.view_as_real(tensor.resolve_conj())


def _flat(tensor: torch.Tensor) -> torch.Tensor:
    """Kernels read memory: a lazy negation or a gap between elements would be invisible to them."""
    if tensor.device.type != "cpu":
        raise UsageError(f"cannot compare a tensor on {tensor.device}: move it to the CPU first")
    return tensor.detach().resolve_neg().contiguous().view(-1)
