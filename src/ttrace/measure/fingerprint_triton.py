"""Fingerprints on a GPU: one pass over a tensor, queued on the current stream; nothing waits.

Enters: a contiguous CUDA tensor, its cells, and room on the device. Leaves: in that room the sums
of every cell, and what each of the programs that ran adds up to of the whole. They are the numbers
of fingerprint.py up to the order of sums; digests are the same to the bit.

A program takes several cells at a time, a warp for each: lanes hold neighbouring columns, rows come
one after the other, so that no sum crosses a warp before its cell is complete.
"""

from __future__ import annotations

import functools
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl

from ttrace.measure.cells import View, signs
from ttrace.measure.fingerprint import EXPONENTS, column_keys

PROGRAMS = 528  # measured on an H200, of 132 to 2,112: four for each multiprocessor
TOTALS = 4  # numbers of each program: squares, sum, peak, and the digest as bits
_WARPS = 8  # measured, of 4 to 16
_WIDTH = 128  # columns that a warp reads at a time; measured, of 128 to 512
_SAMPLED = 16  # of so many stretches of elements, the exponents of one are counted
_STRETCH = 4096  # elements; chosen
_DTYPES = {
    torch.bfloat16: 0,
    torch.float16: 1,
    torch.float32: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
}
_MADE: dict[Any, Any] = {}  # kernels, by what they were compiled for
_WORDS = {1: torch.uint8, 2: torch.uint16, 4: torch.int32}


@triton.jit
def _mixed(x):
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    x ^= x >> 16
    return x | 1


@triton.jit
def _value(word, DTYPE: tl.constexpr):
    if DTYPE == 0:
        return (word << 16).to(tl.float32, bitcast=True)
    if DTYPE == 1:
        return word.to(tl.uint16).to(tl.float16, bitcast=True).to(tl.float32)
    if DTYPE == 3:
        return word.to(tl.uint8).to(tl.float8e4nv, bitcast=True).to(tl.float32)
    if DTYPE == 4:
        return word.to(tl.uint8).to(tl.float8e5, bitcast=True).to(tl.float32)
    return word.to(tl.float32, bitcast=True)


@triton.jit
def _line(
    words,
    outer,
    inside,
    row,
    rows,
    inner,
    column,
    columns,
    is_cell,
    column_cell,
    column_cells,
    IS_WHOLE: tl.constexpr,
):
    """The words of one row of every cell at hand, and the key of that row in each."""
    number = (outer * rows + row).to(tl.int64) * inner + inside
    at = (number * columns)[:, None] + column
    mask = is_cell[:, None]
    if not IS_WHOLE:
        mask = mask & ((row >= 0) & (row < rows))[:, None] & (column >= 0) & (column < columns)
    word = tl.load(words + at, mask=mask, other=0).to(tl.uint32)
    return word, _mixed((number * column_cells + column_cell).to(tl.uint32))[:, None]


@triton.jit
def _sketch(
    words,
    sums,
    totals,
    row_signs,
    column_table,
    rows,
    inner,
    columns,
    row_cells,
    column_cells,
    cell_count,
    row_shift,
    column_shift,
    DTYPE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    COLUMN_SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    WIDTH: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    place = tl.arange(0, WIDTH)
    squares = tl.zeros((AT_ONCE, WIDTH), tl.float32)
    total = tl.zeros((AT_ONCE, WIDTH), tl.float32)
    peak = tl.zeros((AT_ONCE, WIDTH), tl.float32)
    digest = tl.zeros((AT_ONCE, WIDTH), tl.uint32)
    for start in range(tl.program_id(0) * AT_ONCE, cell_count, tl.num_programs(0) * AT_ONCE):
        cell = start + tl.arange(0, AT_ONCE)
        is_cell = cell < cell_count
        column_cell = cell % column_cells
        rest = cell // column_cells
        inside = rest % inner
        rest = rest // inner
        top = (rest % row_cells) * ROW_SIZE - row_shift
        outer = rest // row_cells
        aa = tl.zeros((AT_ONCE, WIDTH), tl.float32)
        ab = tl.zeros((AT_ONCE, WIDTH), tl.float32)
        ba = tl.zeros((AT_ONCE, WIDTH), tl.float32)
        bb = tl.zeros((AT_ONCE, WIDTH), tl.float32)
        for left in range(0, COLUMN_SIZE, WIDTH):
            column = (column_cell * COLUMN_SIZE - column_shift + left)[:, None] + place[None, :]
            table = tl.load(column_table + left + place).to(tl.uint32)
            first = tl.zeros((AT_ONCE, WIDTH), tl.float32)
            second = tl.zeros((AT_ONCE, WIDTH), tl.float32)
            hashed = tl.zeros((AT_ONCE, WIDTH), tl.uint32)
            if ROW_SIZE < 4:
                for line in tl.static_range(ROW_SIZE):
                    word, key = _line(
                        *(words, outer, inside, top + line, rows, inner, column, columns),
                        *(is_cell, column_cell, column_cells, IS_WHOLE),
                    )
                    x = _value(word, DTYPE)
                    first += x
                    if line == 0:
                        second += x
                    else:
                        second -= x
                    squares += x * x
                    total += x
                    peak = tl.maximum(peak, tl.abs(x))
                    hashed += word * key
            else:
                for group in range(ROW_SIZE // 4):
                    row = top + 4 * group
                    w0, k0 = _line(
                        *(words, outer, inside, row, rows, inner, column, columns),
                        *(is_cell, column_cell, column_cells, IS_WHOLE),
                    )
                    w1, k1 = _line(
                        *(words, outer, inside, row + 1, rows, inner, column, columns),
                        *(is_cell, column_cell, column_cells, IS_WHOLE),
                    )
                    w2, k2 = _line(
                        *(words, outer, inside, row + 2, rows, inner, column, columns),
                        *(is_cell, column_cell, column_cells, IS_WHOLE),
                    )
                    w3, k3 = _line(
                        *(words, outer, inside, row + 3, rows, inner, column, columns),
                        *(is_cell, column_cell, column_cells, IS_WHOLE),
                    )
                    x0, x1 = _value(w0, DTYPE), _value(w1, DTYPE)
                    x2, x3 = _value(w2, DTYPE), _value(w3, DTYPE)
                    upper, lower = x0 + x1, x2 - x3
                    if ROW_SIZE == 4:  # + + + - and + + - +
                        first = upper + lower
                        second = upper - lower
                    else:  # of four rows, the second half of a larger cell takes the other signs
                        is_odd = (group % 2).to(tl.float32)
                        four = upper + lower * (1.0 - 2.0 * is_odd)
                        first += four * tl.load(row_signs + group)
                        second += four * tl.load(row_signs + ROW_SIZE // 4 + group)
                    squares += x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3
                    total += upper + (x2 + x3)
                    larger = tl.maximum(tl.abs(x0), tl.abs(x1))
                    larger = tl.maximum(larger, tl.maximum(tl.abs(x2), tl.abs(x3)))
                    peak = tl.maximum(peak, larger)
                    hashed += w0 * k0 + w1 * k1 + w2 * k2 + w3 * k3
            digest += hashed * (table | 1)[None, :]
            a = tl.where((table >> 31) != 0, -1.0, 1.0)[None, :]
            b = tl.where(((table >> 30) & 1) != 0, -1.0, 1.0)[None, :]
            aa += first * a
            ab += first * b
            if ROW_SIZE > 1:
                ba += second * a
                bb += second * b
        each: tl.constexpr = (2 if ROW_SIZE > 1 else 1) * (2 if COLUMN_SIZE > 1 else 1)
        into = sums + each * cell
        tl.store(into, tl.sum(aa, axis=1), mask=is_cell)
        if COLUMN_SIZE > 1:
            tl.store(into + 1, tl.sum(ab, axis=1), mask=is_cell)
        if ROW_SIZE > 1:
            tl.store(into + each // 2, tl.sum(ba, axis=1), mask=is_cell)
            if COLUMN_SIZE > 1:
                tl.store(into + 3, tl.sum(bb, axis=1), mask=is_cell)
    own = totals + 4 * tl.program_id(0)
    tl.store(own, tl.sum(tl.sum(squares, axis=1)))
    tl.store(own + 1, tl.sum(tl.sum(total, axis=1)))
    tl.store(own + 2, tl.max(tl.max(peak, axis=1)))
    bits = tl.sum(tl.sum(digest, axis=1)).to(tl.uint32)
    tl.store(own + 3, bits.to(tl.float32, bitcast=True))


@triton.jit
def _count_exponents(
    words,
    counts,
    stretches,
    DTYPE: tl.constexpr,
    STRETCH: tl.constexpr,
    SAMPLED: tl.constexpr,
    BINS: tl.constexpr,
):
    place = tl.arange(0, STRETCH)
    found = tl.zeros((BINS,), tl.int32)
    for number in range(tl.program_id(0), stretches, tl.num_programs(0)):
        at = number.to(tl.int64) * (STRETCH * SAMPLED) + place
        x = _value(tl.load(words + at).to(tl.uint32), DTYPE)
        found += tl.histogram(((x.to(tl.int32, bitcast=True) >> 25) & 63), BINS)
    tl.atomic_add(counts + tl.arange(0, BINS), found)


@functools.cache
def _tables(device: torch.device, view: View) -> tuple[torch.Tensor, torch.Tensor]:
    rows = torch.from_numpy(signs(max(1, view.row_size // 4)))
    keys = torch.from_numpy(column_keys(view.column_size).view(np.int32))
    return rows.to(device), keys.to(device)


def sketch_on_device(
    tensor: torch.Tensor, view: View, sums: torch.Tensor, totals: torch.Tensor
) -> None:
    """Queue the pass on the current stream; `totals` has room for all programs."""
    row_signs, column_table = _tables(tensor.device, view)
    cut = (view.rows % view.row_size, view.columns % view.column_size)
    arguments = (
        tensor.view(_WORDS[tensor.element_size()]),
        *(sums, totals, row_signs, column_table),
        *(view.rows, view.inner, view.columns, view.row_cells, view.column_cells, view.cells),
        *(view.row_shift, view.column_shift),
    )
    constants: dict[str, Any] = {
        "DTYPE": _DTYPES[tensor.dtype],
        "ROW_SIZE": view.row_size,
        "COLUMN_SIZE": view.column_size,
        "AT_ONCE": _WARPS * max(1, _WIDTH // view.column_size),
        "WIDTH": min(_WIDTH, view.column_size),
        "IS_WHOLE": not any((*cut, view.row_shift, view.column_shift)),
    }
    key = (tensor.device, tensor.dtype, view)
    made = _MADE.get(key)
    if made is None:
        _MADE[key] = _sketch[(PROGRAMS,)](*arguments, **constants, num_warps=_WARPS)
    else:  # half of the time of a launch is looking for what was compiled
        made[(PROGRAMS, 1, 1)](*arguments, *constants.values())


def count_exponents_on_device(tensor: torch.Tensor, counts: torch.Tensor) -> int:
    """Queue counting on a sample of the tensor; of how many elements one was looked at.

    `counts` are zeros; a tensor that is smaller than a sample's stretches is not counted.
    """
    stretches = tensor.numel() // (_STRETCH * _SAMPLED)
    if not stretches:
        return 0
    _count_exponents[(min(PROGRAMS, stretches),)](
        tensor.view(_WORDS[tensor.element_size()]),
        counts,
        stretches,
        DTYPE=_DTYPES[tensor.dtype],
        STRETCH=_STRETCH,
        SAMPLED=_SAMPLED,
        BINS=EXPONENTS,
        num_warps=4,
    )
    return _SAMPLED
