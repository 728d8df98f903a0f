"""The pass over a pair of tensors: compiled where a wheel brought it, else the same sums in numpy.

Enters: two flat contiguous CPU tensors of real numbers and one length, and running sums. Leaves:
the sums, grown by this pair. What the sums mean to a reader is the business of statistics.py.

`_kernel.so` is made from kernel.c when the package is built; nothing is ever compiled here. Set
TTRACE_KERNEL=python to leave it aside.
"""

from __future__ import annotations

import ctypes
import functools
import math
import os
import warnings
from pathlib import Path
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch

from ttrace.errors import UsageError

_LIBRARY = Path(__file__).with_name("_kernel.so")

# These mirror kernel.c: its ABI number and its enum type.
_ABI = 1
_TYPES = {torch.bfloat16: 0, torch.float32: 1}

# Elements converted at a time: three arrays of float64 are then 768 KiB and stay in a 1 MiB L2
# cache (measured: 20% faster than 16 Ki and 64 Ki, four times as fast as 256 Ki).
_CHUNK = 32 * 1024


class Sums(ctypes.Structure):
    """Mirrors `struct sums` of kernel.c, so that both kernels add to the same place."""

    error_squared: float
    reference_squared: float
    candidate_squared: float
    error_dot: float
    error_sum: float
    max_error: float
    nonfinite_reference: int
    nonfinite_candidate: int
    unequal: int

    _fields_ = (
        ("error_squared", ctypes.c_double),
        ("reference_squared", ctypes.c_double),
        ("candidate_squared", ctypes.c_double),
        ("error_dot", ctypes.c_double),
        ("error_sum", ctypes.c_double),
        ("max_error", ctypes.c_double),
        ("nonfinite_reference", ctypes.c_int64),
        ("nonfinite_candidate", ctypes.c_int64),
        ("unequal", ctypes.c_int64),
    )


class Kernel(Protocol):
    """Adds a pair to the sums; a pair of elements with a NaN or Inf is counted and not summed."""

    def add(self, reference: torch.Tensor, candidate: torch.Tensor, sums: Sums) -> None: ...


class PythonKernel:
    """Every dtype in float64, whose sums need no blocks; about an eighth of the compiled speed."""

    def add(self, reference: torch.Tensor, candidate: torch.Tensor, sums: Sums) -> None:
        for start in range(0, reference.numel(), _CHUNK):
            stop = start + _CHUNK
            _add_chunk(reference[start:stop], candidate[start:stop], sums)


class CompiledKernel:
    """kernel.c for everything float32 holds exactly, the Python kernel for the rest.

    `level` is the enum of kernel.c: which instruction set to use, the best of this machine if None.
    """

    def __init__(self, library: ctypes.CDLL, *, level: int | None = None) -> None:
        self.best_level = int(library.ttrace_kernel_best_level())
        self._level = self.best_level if level is None else level
        self._add = library.ttrace_kernel_add
        self._add.restype = None
        self._add.argtypes = [
            ctypes.c_int,
            ctypes.c_int,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_int64,
            ctypes.POINTER(Sums),
        ]
        self._wide = PythonKernel()

    def add(self, reference: torch.Tensor, candidate: torch.Tensor, sums: Sums) -> None:
        if reference.dtype == candidate.dtype and reference.dtype in _TYPES:
            self._call(reference, candidate, sums)
        elif _fits_float32(reference.dtype) and _fits_float32(candidate.dtype):
            for start in range(0, reference.numel(), _CHUNK):
                stop = start + _CHUNK
                self._call(reference[start:stop].float(), candidate[start:stop].float(), sums)
        else:
            self._wide.add(reference, candidate, sums)

    def _call(self, reference: torch.Tensor, candidate: torch.Tensor, sums: Sums) -> None:
        self._add(
            _TYPES[reference.dtype],
            self._level,
            reference.data_ptr(),
            candidate.data_ptr(),
            reference.numel(),
            ctypes.byref(sums),
        )


@functools.cache
def default_kernel() -> Kernel:
    """The compiled kernel if it is there and wanted."""
    wanted = os.environ.get("TTRACE_KERNEL", "")
    if wanted not in ("", "python"):
        raise UsageError(
            f"TTRACE_KERNEL is {wanted!r}: set it to 'python' to do without the compiled kernel, "
            "or leave it unset"
        )
    library = None if wanted == "python" else load_library(_LIBRARY)
    return PythonKernel() if library is None else CompiledKernel(library)


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
        "install ttrace again",
        RuntimeWarning,
        stacklevel=2,
    )
    return None


def _fits_float32(dtype: torch.dtype) -> bool:
    return dtype == torch.float32 or dtype.itemsize <= 2


def _add_chunk(reference: torch.Tensor, candidate: torch.Tensor, sums: Sums) -> None:
    r, c = reference.double(), candidate.double()
    unequal = _differ(reference, candidate, r, c)
    rr, cc = _dot(r, r), _dot(c, c)
    # One NaN or Inf anywhere makes these sums non-finite, so that clean chunks are not searched.
    if not math.isfinite(rr + cc):
        finite_r, finite_c = r.isfinite(), c.isfinite()
        unequal &= ~(r.isnan() & c.isnan()).numpy()
        sums.nonfinite_reference += int((~finite_r).sum())
        sums.nonfinite_candidate += int((~finite_c).sum())
        both = finite_r & finite_c
        r, c = r[both], c[both]
        rr, cc = _dot(r, r), _dot(c, c)
    error = c - r
    sums.unequal += int(np.count_nonzero(unequal))
    sums.error_squared += _dot(error, error)
    sums.reference_squared += rr
    sums.candidate_squared += cc
    sums.error_dot += _dot(error, r)
    sums.error_sum += error.sum().item()
    if error.numel():
        array = error.numpy()
        sums.max_error = max(sums.max_error, float(array.max()), -float(array.min()))


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
