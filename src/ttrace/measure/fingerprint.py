"""Fingerprints: a tensor as the sums of its cells, and what it adds up to as a whole.

    squares, total, peak    exact but for rounding
    digest                  of all bits: replicas that differ in one bit have another one
    exponents               how many elements have which magnitude, where that is wanted
    sums                    of the cells (cells.py)

Enters: a tensor on the CPU and its cells. Leaves: a fingerprint, and its bytes:

    | squares, total, peak: float64 | digest, 0: uint32 | exponents: 64 uint32 | sums: float32 |

The compiled pass is in sketch.c; without it numpy makes the same sums, slowly. On a GPU
fingerprint_triton.py does.
"""

from __future__ import annotations

import ctypes
import functools
import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from ttrace.measure.cells import Cells, PerDim, View, signs
from ttrace.measure.kernel import compiled_library

EXPONENTS = 64  # bins of four exponents each: those of float32 in steps of 16
SMALLEST_MAGNITUDES = 2.0 ** (4.0 * np.arange(EXPONENTS) - 127)  # of each bin but the first
_TOTALS = struct.Struct("<dddI")
_TOTALS_BYTES = 3 * 8 + 2 * 4
_COUNTS_BYTES = 4 * EXPONENTS

Words = npt.NDArray[np.uint32]
_VALUE_TYPES = {torch.bfloat16: 0, torch.float32: 1}  # enum type of sketch.c
_WORDS = {1: torch.uint8, 2: torch.int16, 4: torch.int32}
SKETCHED = frozenset(
    {
        torch.bfloat16,
        torch.float32,
        torch.float16,
        torch.float8_e4m3fn,
        torch.float8_e5m2,
    }
)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Fingerprint:
    """Of one local tensor; `sums` has the shape of `Cells.sums_shape`."""

    squares: float
    total: float
    peak: float
    digest: int
    sums: npt.NDArray[np.float64]
    exponents: Words | None = None

    def to_bytes(self) -> bytes:
        numbers = np.array([self.squares, self.total, self.peak], dtype="<f8").tobytes()
        words = np.array([self.digest, 0], dtype="<u4").tobytes()
        counts = b"" if self.exponents is None else self.exponents.astype("<u4").tobytes()
        with np.errstate(over="ignore"):  # of a mask, whose values are as low as they can be
            sums = self.sums.astype("<f4")
        return numbers + words + counts + sums.tobytes()

    @classmethod
    def from_bytes(
        cls, data: bytes | memoryview, sums_shape: PerDim, *, has_exponents: bool
    ) -> Fingerprint:
        squares, total, peak, digest = _TOTALS.unpack_from(data)
        start = _TOTALS_BYTES + (_COUNTS_BYTES if has_exponents else 0)
        exponents = None
        if has_exponents:
            exponents = np.frombuffer(data, dtype="<u4", count=EXPONENTS, offset=_TOTALS_BYTES)
        sums = np.frombuffer(data, dtype="<f4", offset=start)
        return cls(
            squares=squares,
            total=total,
            peak=peak,
            digest=digest,
            exponents=exponents,
            sums=sums.astype(np.float64).reshape(sums_shape),
        )


class PrintForm(NamedTuple):
    """What the fingerprints of tensors that are alike have in common."""

    dtype: torch.dtype
    view: View
    has_exponents: bool
    elements: int
    sums_at: int  # where sums begin
    size_bytes: int

    @classmethod
    def of(
        cls, shape: Sequence[int], dtype: torch.dtype, cells: Cells, *, has_exponents: bool
    ) -> PrintForm:
        return cls(
            dtype=dtype,
            view=View.of(shape, cells),
            has_exponents=has_exponents,
            elements=math.prod(shape),
            sums_at=_TOTALS_BYTES + (_COUNTS_BYTES if has_exponents else 0),
            size_bytes=fingerprint_bytes(shape, cells, has_exponents=has_exponents),
        )


def fingerprint_bytes(shape: Sequence[int], cells: Cells, *, has_exponents: bool) -> int:
    """How many bytes a fingerprint takes."""
    sums = View.of(shape, cells).cells * 2 ** len(cells.signed)
    return _TOTALS_BYTES + (_COUNTS_BYTES if has_exponents else 0) + 4 * sums


def fingerprint_of(
    tensor: torch.Tensor, cells: Cells, *, with_exponents: bool = False
) -> Fingerprint:
    """Of a CPU tensor; one that is not contiguous is copied."""
    tensor = tensor.detach().resolve_neg().contiguous()
    view = View.of(tuple(tensor.shape), cells)
    values = tensor if tensor.dtype in _VALUE_TYPES else tensor.float()
    words = tensor.reshape(-1).view(_WORDS[tensor.itemsize])
    sums = np.zeros((view.cells, 2 if view.row_size > 1 else 1, 2))
    exponents = np.zeros(EXPONENTS, dtype=np.uint32) if with_exponents else None
    totals = _Totals()
    library = compiled_library()
    if not tensor.numel():
        pass
    elif library is None:
        _sketch_in_numpy(values.float().numpy().ravel(), words, view, sums, totals, exponents)
    else:
        _sketch_compiled(library, values, words, view, sums, totals, exponents)
    if view.column_size == 1:
        sums = sums[..., :1]  # a cell of one column has A = B
    return Fingerprint(
        squares=totals.squares,
        total=totals.sum,
        peak=totals.peak,
        digest=totals.digest,
        exponents=exponents,
        sums=sums.reshape(cells.sums_shape(tuple(tensor.shape))),
    )


class _View(ctypes.Structure):
    _fields_ = tuple((name, ctypes.c_int64) for name in View._fields)


class _Totals(ctypes.Structure):
    squares: float
    sum: float
    peak: float
    digest: int

    _fields_ = (
        ("squares", ctypes.c_double),
        ("sum", ctypes.c_double),
        ("peak", ctypes.c_double),
        ("digest", ctypes.c_uint32),
    )


class _Tensor(ctypes.Structure):
    _fields_ = (
        ("values", ctypes.c_void_p),
        ("words", ctypes.c_void_p),
        ("word_bytes", ctypes.c_int),
        ("row_signs", ctypes.c_void_p),
        ("column_signs", ctypes.c_void_p),
        ("column_keys", ctypes.c_void_p),
        ("exponents", ctypes.c_void_p),
    )


def _sketch_compiled(
    library: ctypes.CDLL,
    values: torch.Tensor,
    words: torch.Tensor,
    view: View,
    sums: npt.NDArray[np.float64],
    totals: _Totals,
    exponents: Words | None,
) -> None:
    tensor = _Tensor(
        values=values.data_ptr(),
        words=words.data_ptr(),
        word_bytes=words.itemsize,
        row_signs=signs(view.row_size).ctypes.data,
        column_signs=signs(view.column_size).ctypes.data,
        column_keys=column_keys(view.column_size).ctypes.data,
        exponents=None if exponents is None else exponents.ctypes.data,
    )
    library.ttrace_sketch(
        ctypes.c_int(library.ttrace_kernel_best_level()),
        ctypes.c_int(_VALUE_TYPES[values.dtype]),
        ctypes.byref(tensor),
        ctypes.byref(_View(*view)),
        ctypes.c_void_p(sums.ctypes.data),
        ctypes.byref(totals),
    )


def _sketch_in_numpy(
    values: npt.NDArray[np.float32],
    words: torch.Tensor,
    view: View,
    sums: npt.NDArray[np.float64],
    totals: _Totals,
    exponents: Words | None,
) -> None:
    """Row by row."""
    unsigned = words.numpy().view({1: np.uint8, 2: np.uint16, 4: np.uint32}[words.itemsize])
    row_signs, column_signs = (
        signs(size).astype(np.float64) for size in (view.row_size, view.column_size)
    )
    keys, digest = column_keys(view.column_size).astype(np.uint64), 0
    into = sums.reshape(view.outer, view.row_cells, view.inner, view.column_cells, -1, 2)
    lead, tail = view.column_shift, -(view.column_shift + view.columns) % view.column_size
    for number in range(view.outer * view.rows * view.inner):
        part = slice(number * view.columns, (number + 1) * view.columns)
        row = np.pad(values[part].astype(np.float64), (lead, tail))
        with np.errstate(invalid="ignore"):  # infinities of both signs add up to no number
            pairs = row.reshape(view.column_cells, view.column_size) @ column_signs.T
        rest, inner = divmod(number, view.inner)
        outer, at = divmod(rest, view.rows)
        cell, place = divmod(at + view.row_shift, view.row_size)
        for index in range(into.shape[4]):
            into[outer, cell, inner, :, index] += row_signs[index, place] * pairs
        hashed = np.pad(unsigned[part].astype(np.uint64), (lead, tail))
        hashed = (hashed.reshape(view.column_cells, -1) * keys).sum(axis=1)
        cells = np.arange(view.column_cells, dtype=np.uint64)
        digest += int((hashed * _mixed(cells + np.uint64(number * view.column_cells))).sum())
    totals.squares = float((values.astype(np.float64) ** 2).sum())
    totals.sum = float(values.astype(np.float64).sum())
    totals.peak = float(np.abs(values).max())
    totals.digest = digest & 0xFFFFFFFF
    if exponents is not None:
        exponents += np.bincount((values.view(np.uint32) >> 25) & 63, minlength=EXPONENTS).astype(
            np.uint32
        )


@functools.cache
def column_keys(size: int) -> Words:
    """Odd numbers for the places in a cell; their two highest bits tell the signs of the pair."""
    first, second = (row < 0 for row in signs(size))
    high = first.astype(np.uint64) << np.uint64(31) | second.astype(np.uint64) << np.uint64(30)
    low = _mixed(np.arange(size, dtype=np.uint64)) & np.uint64(0x3FFFFFFF)
    return (low | high).astype(np.uint32)


def _mixed(x: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """The finaliser of MurmurHash3, made odd."""
    mask = np.uint64(0xFFFFFFFF)
    x = x & mask
    for shift, factor in ((16, 0x85EBCA6B), (13, 0xC2B2AE35)):
        x = x ^ (x >> np.uint64(shift))
        x = (x * np.uint64(factor)) & mask
    return (x ^ (x >> np.uint64(16))) | np.uint64(1)
