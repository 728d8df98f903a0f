"""Statistics: how far a candidate tensor is from its reference, in one pass over both.

    relative_error  0.0226            ||candidate - reference|| / ||reference||
    gain            1.0098            <candidate, reference> / <reference, reference>
    unequal         14,789 of 16,384  (2% noise hides a factor of 1.01 from all but the gain)

Enters: pairs of equally shaped CPU tensors, block by block, in any dtype. Leaves: one frozen
record. Whether its numbers are acceptable is decided elsewhere.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any

import torch

from ttrace.core.kernel import Kernel, Sums, default_kernel
from ttrace.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Statistics:
    """What one pass over a pair measured; complex numbers count as two elements each.

    An element that is NaN or Inf on either side is counted and left out, on both sides, of all
    norms and sums. `unequal` looks at values: NaN equals NaN, and 0 equals -0. `dot` is
    accurate on the scale of reference_norm**2, and `gain` to about 1e-6 of relative_error.
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

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: dict[str, Any]) -> Statistics:
        return cls(**data)


class Accumulator:
    """Adds up the statistics of one logical tensor from its pieces, in any order."""

    __slots__ = ("_count", "_kernel", "_sums")

    def __init__(self, kernel: Kernel | None = None) -> None:
        self._kernel = default_kernel() if kernel is None else kernel
        self._count = 0
        self._sums = Sums()

    def update(self, reference: torch.Tensor, candidate: torch.Tensor) -> None:
        """A piece that is not contiguous is copied; keep those to about a million elements."""
        if reference.shape != candidate.shape:
            raise UsageError(
                f"cannot compare a reference of shape {list(reference.shape)} with a candidate of "
                f"shape {list(candidate.shape)}: merge and slice both to the same piece first"
            )
        if reference.is_complex() or candidate.is_complex():
            reference, candidate = _as_real(reference), _as_real(candidate)
        reference, candidate = _flat(reference), _flat(candidate)
        self._kernel.add(reference, candidate, self._sums)
        self._count += reference.numel()

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
