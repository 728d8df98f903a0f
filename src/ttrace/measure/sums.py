"""Sums: what one pass over a pair of matrices adds up, whichever kernel makes it.

`Sums` mirrors `struct sums` of kernel.c. What the numbers mean to a reader is the business of
statistics.py and slices.py.
"""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

Vector = npt.NDArray[np.float64]


class Sums(ctypes.Structure):
    """Both kernels add to the same place.

    `worst` is the flat index, in the matrices of the latest call, of an element that is further off
    than `max_error` was before it; a call that finds none leaves it alone. Grains are the mantissa
    bits that any finite element of the pair has set, where a float64 has them (core/formats.py).
    """

    error_squared: float
    reference_squared: float
    candidate_squared: float
    error_dot: float
    error_sum: float
    max_error: float
    peak: float
    nonfinite_reference: int
    nonfinite_candidate: int
    unequal: int
    max_ulp: int
    worst: int
    reference_grain: int
    candidate_grain: int

    _fields_ = (
        ("error_squared", ctypes.c_double),
        ("reference_squared", ctypes.c_double),
        ("candidate_squared", ctypes.c_double),
        ("error_dot", ctypes.c_double),
        ("error_sum", ctypes.c_double),
        ("max_error", ctypes.c_double),
        ("peak", ctypes.c_double),
        ("nonfinite_reference", ctypes.c_int64),
        ("nonfinite_candidate", ctypes.c_int64),
        ("unequal", ctypes.c_int64),
        ("max_ulp", ctypes.c_int64),
        ("worst", ctypes.c_int64),
        ("reference_grain", ctypes.c_uint64),
        ("candidate_grain", ctypes.c_uint64),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Squares:
    """The squared error of every row and of every column is added here; None: not wanted."""

    rows: Vector | None = None
    columns: Vector | None = None


NO_SQUARES = Squares()


class Kernel(Protocol):
    """Adds a pair to the sums; a pair of elements with a NaN or Inf is counted and not summed."""

    def add(
        self,
        reference: torch.Tensor,
        candidate: torch.Tensor,
        sums: Sums,
        squares: Squares = NO_SQUARES,
    ) -> None: ...
