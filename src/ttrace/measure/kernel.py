"""The pass over a pair of tensors: compiled where a wheel brought it, else the same sums in numpy.

Enters: two contiguous CPU matrices of real numbers and one shape, and running sums. Leaves: the
sums, grown by this pair, and the squared error of every row and column where they are wanted.

`_kernel.so` is made from kernel.c when the package is built; nothing is ever compiled here. Set
TTRACE_KERNEL=python to leave it aside.
"""

from __future__ import annotations

import ctypes
import functools
import os
import warnings
from pathlib import Path

import torch

from ttrace.errors import UsageError
from ttrace.measure.kernel_numpy import (
    PythonKernel,
    add_ulp,
    chunks,
    counted_from,
    fits_float32,
)
from ttrace.measure.sums import NO_SQUARES, Kernel, Squares, Sums

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
