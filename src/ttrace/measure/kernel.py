"""The pass over a pair of tensors: compiled where a wheel brought it, else the same sums in numpy.

Enters: two contiguous CPU matrices of real numbers and one shape, and running sums. Leaves: the
sums, grown by this pair, and the squared error of every row and column where they are wanted. What
the numbers mean to a reader is the business of accumulator.py.

`_kernel.so` is made from kernel.c when the package is built; nothing is ever compiled here. Set
TTRACE_KERNEL=python to leave it aside.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ttrace.errors import UsageError
from ttrace.measure.rounding import bits_of, count_ulps_between

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


# Elements converted at a time: three arrays of float64 are then 768 KiB and stay in a 1 MiB L2
# cache (measured: 20% faster than 16 Ki and 64 Ki, four times as fast as 256 Ki).
_CHUNK = 32 * 1024

_LARGEST = np.iinfo(np.int64).max


class PythonKernel:
    """Every dtype in float64, whose sums need no blocks; about an eighth of the compiled speed."""

    def add(
        self,
        reference: torch.Tensor,
        candidate: torch.Tensor,
        sums: Sums,
        squares: Squares = NO_SQUARES,
    ) -> None:
        for part, first, inside in chunks(reference, squares):
            r, c = reference[part].contiguous(), candidate[part].contiguous()
            add_ulp(r, c, sums)
            _add_grains(r, c, sums)
            with counted_from(first, sums):
                _add_chunk(r, c, sums, inside)


def chunks(
    matrix: torch.Tensor, squares: Squares
) -> Iterator[tuple[tuple[slice, slice], int, Squares]]:
    """Parts of at most _CHUNK elements, the flat index of their first, and their squares.

    A part is either whole rows or a piece of one, so its elements follow each other.
    """
    rows, columns = matrix.shape
    wide = min(columns, _CHUNK)
    high = max(1, _CHUNK // max(1, wide))
    for row in range(0, rows, high):
        for column in range(0, columns, max(1, wide)):
            down, across = slice(row, row + high), slice(column, column + wide)
            inside = Squares(
                rows=None if squares.rows is None else squares.rows[down],
                columns=None if squares.columns is None else squares.columns[across],
            )
            yield (down, across), row * columns + column, inside


@contextmanager
def counted_from(first: int, sums: Sums) -> Iterator[None]:
    """The worst element of a part, as an index of the whole."""
    before, sums.worst = sums.worst, -1
    yield
    sums.worst = before if sums.worst < 0 else first + sums.worst


def add_ulp(reference: torch.Tensor, candidate: torch.Tensor, sums: Sums) -> None:
    """The largest distance in units in the last place, of two floating tensors of one dtype."""
    if reference.dtype != candidate.dtype or not reference.is_floating_point():
        return
    r, c = bits_of(reference), bits_of(candidate)
    if np.array_equal(r, c):
        return
    wide_r, wide_c = reference.double(), candidate.double()
    if not math.isfinite(wide_r.sum().item() + wide_c.sum().item()):
        finite = (wide_r.isfinite() & wide_c.isfinite()).numpy()
        r, c = r[finite], c[finite]
    if r.size:
        sums.max_ulp = max(sums.max_ulp, min(int(count_ulps_between(r, c).max()), _LARGEST))


def _add_grains(reference: torch.Tensor, candidate: torch.Tensor, sums: Sums) -> None:
    """The mantissa bits of both, of pairs that are finite."""
    r, c = _as_kernels_have(reference), _as_kernels_have(candidate)
    finite = (r.isfinite() & c.isfinite()).numpy()
    sums.reference_grain |= _mantissas(r, finite)
    sums.candidate_grain |= _mantissas(c, finite)


def _as_kernels_have(values: torch.Tensor) -> torch.Tensor:
    """Flat, as float32 where that holds all of its numbers, else as float64."""
    flat = values.reshape(-1)
    return flat.float() if fits_float32(values.dtype) else flat.double()


def _mantissas(values: torch.Tensor, finite: npt.NDArray[np.bool_]) -> int:
    bits = bits_of(values)
    used = int(np.bitwise_or.reduce(bits if finite.all() else bits[finite]))
    if values.dtype == torch.float32:
        return (used & ((1 << 23) - 1)) << 29
    return used & ((1 << 52) - 1)


def fits_float32(dtype: torch.dtype) -> bool:
    """Whether float32 holds all of its numbers."""
    return dtype == torch.float32 or dtype.itemsize <= 2


def _add_chunk(
    reference: torch.Tensor, candidate: torch.Tensor, sums: Sums, squares: Squares
) -> None:
    r, c = reference.double().flatten(), candidate.double().flatten()
    unequal = _differ(reference.flatten(), candidate.flatten(), r, c)
    rr, cc = _dot(r, r), _dot(c, c)
    # One NaN or Inf anywhere makes these sums non-finite, so that clean chunks are not searched.
    if not math.isfinite(rr + cc):
        finite_r, finite_c = r.isfinite(), c.isfinite()
        unequal &= ~(r.isnan() & c.isnan()).numpy()
        apart = r != c  # but for the infinities of a mask, and NaN equals nothing
        sums.nonfinite_reference += int((~finite_r & apart).sum())
        sums.nonfinite_candidate += int((~finite_c & apart).sum())
        neither = ~(finite_r & finite_c)
        r, c = r.masked_fill(neither, 0.0), c.masked_fill(neither, 0.0)
        rr, cc = _dot(r, r), _dot(c, c)
    error = c - r
    sums.unequal += int(np.count_nonzero(unequal))
    sums.error_squared += _dot(error, error)
    sums.reference_squared += rr
    sums.candidate_squared += cc
    sums.error_dot += _dot(error, r)
    sums.error_sum += error.sum().item()
    if r.numel():
        sums.peak = max(sums.peak, r.max().item(), -r.min().item())
    _add_places(error.reshape(reference.shape), sums, squares)


def _add_places(error: torch.Tensor, sums: Sums, squares: Squares) -> None:
    array = error.numpy()
    if not array.size:
        return
    largest = max(float(array.max()), -float(array.min()))
    if largest > sums.max_error:
        sums.max_error = largest
        sums.worst = int(np.abs(array).argmax())
    if squares.rows is not None or squares.columns is not None:
        squared = np.square(array)
        if squares.rows is not None:
            squares.rows[:] += squared.sum(axis=1)
        if squares.columns is not None:
            squares.columns[:] += squared.sum(axis=0)


def _dot(a: torch.Tensor, b: torch.Tensor) -> float:
    """Not numpy's, whose BLAS starts threads of its own whatever torch was told."""
    return torch.dot(a, b).item()


def _differ(
    reference: torch.Tensor, candidate: torch.Tensor, r: torch.Tensor, c: torch.Tensor
) -> npt.NDArray[np.bool_]:
    """In numpy, which compares and counts five times as fast as torch (measured at this size).

    Whole numbers beyond 2^53 may differ and still be the same float64.
    """
    whole = not (reference.is_floating_point() or candidate.is_floating_point())
    if whole and reference.dtype == candidate.dtype:
        return reference.numpy() != candidate.numpy()
    return r.numpy() != c.numpy()


_LIBRARY = Path(__file__).with_name("_kernel.so")

# These mirror kernel.c: its ABI number and its enum type.
_ABI = 7
_TYPES = {torch.bfloat16: 0, torch.float32: 1}


class CompiledKernel:
    """kernel.c for everything float32 holds exactly, the Python kernel for the rest.

    `level` is the enum of kernel.c: which instruction set to use, the best of this machine if None.
    """

    def __init__(self, library: ctypes.CDLL, *, level: int | None = None) -> None:
        self.best_level = int(library.ttrace_kernel_best_level())
        self._level = self.best_level if level is None else level
        self._add = library.ttrace_kernel_add
        self._add.restype = None
        pointer, size = ctypes.c_void_p, ctypes.c_int64
        self._add.argtypes = [
            *(ctypes.c_int, ctypes.c_int),
            *(pointer, pointer, size, size, pointer, pointer),
            ctypes.POINTER(Sums),
        ]
        self._wide = PythonKernel()

    def add(
        self,
        reference: torch.Tensor,
        candidate: torch.Tensor,
        sums: Sums,
        squares: Squares = NO_SQUARES,
    ) -> None:
        if reference.dtype == candidate.dtype and reference.dtype in _TYPES:
            self._call(reference, candidate, sums, squares)
        elif fits_float32(reference.dtype) and fits_float32(candidate.dtype):
            self._add_as_float32(reference, candidate, sums, squares)
        else:
            self._wide.add(reference, candidate, sums, squares)

    def _add_as_float32(
        self, reference: torch.Tensor, candidate: torch.Tensor, sums: Sums, squares: Squares
    ) -> None:
        for part, first, inside in chunks(reference, squares):
            r, c = reference[part].contiguous(), candidate[part].contiguous()
            add_ulp(r, c, sums)
            largest = sums.max_ulp  # of their own dtype, not of float32
            with counted_from(first, sums):
                self._call(r.float(), c.float(), sums, inside)
            sums.max_ulp = largest

    def _call(
        self, reference: torch.Tensor, candidate: torch.Tensor, sums: Sums, squares: Squares
    ) -> None:
        rows, columns = reference.shape
        self._add(
            _TYPES[reference.dtype],
            self._level,
            reference.data_ptr(),
            candidate.data_ptr(),
            rows,
            columns,
            None if squares.rows is None else squares.rows.ctypes.data,
            None if squares.columns is None else squares.columns.ctypes.data,
            ctypes.byref(sums),
        )


@functools.cache
def default_kernel() -> Kernel:
    """The compiled kernel if it is there and wanted."""
    library = compiled_library()
    return PythonKernel() if library is None else CompiledKernel(library)


@functools.cache
def compiled_library() -> ctypes.CDLL | None:
    """What a wheel brought, unless it is not wanted."""
    wanted = os.environ.get("TTRACE_KERNEL", "")
    if wanted not in ("", "python"):
        raise UsageError(
            f"TTRACE_KERNEL is {wanted!r}: set it to 'python' to do without the compiled kernel, "
            "or leave it unset"
        )
    return None if wanted == "python" else load_library(_LIBRARY)


def load_library(path: Path) -> ctypes.CDLL | None:
    """None without a word if it was never built, with a warning if it cannot be used."""
    if not path.exists():
        return None
    try:
        library = ctypes.CDLL(str(path))
        abi = int(library.ttrace_kernel_abi())
    except (OSError, AttributeError) as error:
        problem = str(error)
    else:
        if abi == _ABI:
            return library
        problem = f"it has ABI {abi}, not {_ABI}"
    warnings.warn(
        f"{path} cannot be used ({problem}), so comparing will be several times slower; "
        "install ttrace again; in a clone `python build_kernel.py` is enough",
        RuntimeWarning,
        stacklevel=2,
    )
    return None
