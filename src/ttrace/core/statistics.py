"""Statistics: how far a candidate tensor is from its reference, in one pass over both.

    relative_error  0.0226            ||candidate - reference|| / ||reference||
    gain            1.0098            <candidate, reference> / <reference, reference>
    worst_element   (3, 17, 40)       where |candidate - reference| is largest
    slices          row (3, 17) ...   where the norm of the error is largest (slices.py)
    max_ulp         12                the largest distance in units in the last place
    unequal         14,789 of 16,384  (2% noise hides a factor of 1.01 from all but the gain)

Enters: pairs of equally shaped CPU tensors, block by block, in any dtype. Leaves: one frozen
record. Whether its numbers are acceptable is decided elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ttrace.core.kernel import default_kernel
from ttrace.core.slices import Slice, SliceSums
from ttrace.core.sums import NO_SQUARES, Kernel, Sums
from ttrace.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What one pass over a pair measured; complex numbers count as two elements each.

    An element that is NaN or Inf on either side is counted and left out, on both sides, of all
    norms and sums. `unequal` looks at values: NaN equals NaN, and 0 equals -0; `same_bits` does
    not, and needs one dtype. `dot` is accurate on the scale of reference_norm**2, and `gain` to
    about 1e-6 of relative_error. Places are indices of the logical tensor, and empty where
    nothing differs or where only pieces were given.
    """

    count: int
    error_norm: float
    reference_norm: float
    candidate_norm: float
    dot: float
    max_error: float
    error_sum: float
    nonfinite_reference: int
    nonfinite_candidate: int
    unequal: int
    same_bits: bool = False
    max_ulp: int | None = None  # of two tensors of one floating dtype
    worst_element: tuple[int, ...] = ()
    slices: tuple[Slice, ...] = ()

    @property
    def relative_error(self) -> float:
        """In units of the reference; infinite if only the reference is zero."""
        if self.reference_norm == 0:
            return 0.0 if self.error_norm == 0 else math.inf
        return self.error_norm / self.reference_norm

    @property
    def gain(self) -> float:
        """The factor that best maps the reference on the candidate; NaN for a zero reference."""
        # Not dot / norm**2, which would underflow for a tiny tensor.
        if self.reference_norm == 0:
            return math.nan
        return self.dot / self.reference_norm / self.reference_norm

    @property
    def equal(self) -> bool:
        return self.unequal == 0

    @property
    def along_reference(self) -> float:
        """The part of the error along the reference: |gain - 1| times the reference's norm."""
        # Without an error the gain is 1 to the last place only.
        exact = self.error_norm == 0 or self.reference_norm == 0
        return 0.0 if exact else abs(self.gain - 1) * self.reference_norm

    @property
    def along_ones(self) -> float:
        """The part of the error that is the same everywhere: |mean shift| times sqrt(count)."""
        return abs(self.error_sum) / math.sqrt(self.count) if self.count else 0.0

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Statistics:
        places = {
            "worst_element": tuple(data["worst_element"]),
            "slices": tuple(Slice.from_json(found) for found in data["slices"]),
        }
        return cls(**(data | places))


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
            error_sum=sums.error_sum,
            nonfinite_reference=sums.nonfinite_reference,
            nonfinite_candidate=sums.nonfinite_candidate,
            unequal=sums.unequal,
            same_bits=sums.different_bits == 0,
            max_ulp=sums.max_ulp if self._ulp else None,
            worst_element=self._worst,
            slices=self._slices.worst() if self._shape and sums.error_squared else (),
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
