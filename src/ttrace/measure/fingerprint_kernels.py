"""The kernels of fingerprints on a GPU, in Triton's language; fingerprint_triton.py launches them.

A warp takes a cell at a time: its lanes hold neighbouring columns, four rows at once, so that no
sum crosses a lane before its cell is complete.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def _mixed(x):
    x ^= x >> 16
    x *= 0x85EBCA6B
    x ^= x >> 13
    x *= 0xC2B2AE35
    x ^= x >> 16
    return x | 1


@triton.jit
def _words(address, DTYPE: tl.constexpr, IS_ALIGNED: tl.constexpr):
    """Where the words of a tensor begin."""
    if DTYPE >= 3:
        words = address.to(tl.pointer_type(tl.uint8))
    elif DTYPE == 2:
        words = address.to(tl.pointer_type(tl.uint32))
    else:
        words = address.to(tl.pointer_type(tl.uint16))
    if IS_ALIGNED:
        words = tl.multiple_of(words, 16)
    return words


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
def _line(words, begin, column, columns, row, rows, is_cell, key, IS_WHOLE: tl.constexpr):
    """The words of one row of every cell at hand, and the key of that row in each."""
    mask = is_cell[:, None, None]
    if not IS_WHOLE:
        is_row = (row >= 0) & (row < rows)
        mask = mask & is_row[:, None, None] & (column >= 0) & (column < columns)
    word = tl.load(words + begin, mask=mask, other=0).to(tl.uint32)
    return word, _mixed(key.to(tl.uint32))[:, None, None]


@triton.jit
def _keys(column_table, at, COLUMN_SIZE: tl.constexpr, DTYPE: tl.constexpr):
    """Keys of columns, from planes of words as wide as those of the tensor.

    So both are loaded by the same lanes, and nothing has to be exchanged.
    """
    keys = tl.load(column_table + at).to(tl.uint32)
    if DTYPE != 2:
        keys |= tl.load(column_table + COLUMN_SIZE + at).to(tl.uint32) << (8 if DTYPE >= 3 else 16)
    if DTYPE >= 3:
        keys |= tl.load(column_table + 2 * COLUMN_SIZE + at).to(tl.uint32) << 16
        keys |= tl.load(column_table + 3 * COLUMN_SIZE + at).to(tl.uint32) << 24
    return keys


@triton.jit
def _signed(x, sign):
    """x, or -x where the highest bit of `sign` is set."""
    return (x.to(tl.uint32, bitcast=True) ^ (sign & 0x80000000)).to(tl.float32, bitcast=True)


@triton.jit
def _sketched(
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
    program,
    programs,
    DTYPE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    COLUMN_SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    LANES: tl.constexpr,
    ITEMS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
):
    WIDTH: tl.constexpr = LANES * ITEMS
    GROUP: tl.constexpr = 4 if ROW_SIZE >= 4 else ROW_SIZE
    GROUPS: tl.constexpr = ROW_SIZE // GROUP
    place = tl.arange(0, LANES)[:, None] * ITEMS + tl.arange(0, ITEMS)[None, :]
    squares = tl.zeros((AT_ONCE, LANES), tl.float32)
    total = tl.zeros((AT_ONCE, LANES), tl.float32)
    peak = tl.zeros((AT_ONCE, LANES), tl.float32)
    digest = tl.zeros((AT_ONCE, LANES), tl.uint32)
    for start in range(program * AT_ONCE, cell_count, programs * AT_ONCE):
        # From the end: what was written last is still in the cache.
        cell = cell_count - 1 - (start + tl.arange(0, AT_ONCE))
        is_cell = cell >= 0
        column_cell = cell % column_cells
        rest = cell // column_cells
        inside = rest % inner
        rest = rest // inner
        top = (rest % row_cells) * ROW_SIZE - row_shift
        number = ((rest // row_cells).to(tl.int64) * rows + top) * inner + inside
        if IS_WHOLE:  # so that the compiler knows how these are aligned
            begin = (number * column_cells + column_cell) * COLUMN_SIZE
            stride = tl.cast(inner * column_cells, tl.int64) * COLUMN_SIZE
        else:
            begin = number * columns + column_cell * COLUMN_SIZE - column_shift
            stride = tl.cast(inner, tl.int64) * columns
        key = number * column_cells + column_cell
        key_stride = tl.cast(inner, tl.int64) * column_cells
        aa = tl.zeros((AT_ONCE, LANES), tl.float32)
        ab = tl.zeros((AT_ONCE, LANES), tl.float32)
        ba = tl.zeros((AT_ONCE, LANES), tl.float32)
        bb = tl.zeros((AT_ONCE, LANES), tl.float32)
        for group in range(GROUPS):
            row = top + group * GROUP
            at = begin + group * (GROUP * stride)
            own = key + group * (GROUP * key_stride)
            if GROUPS > 1:
                a_row = tl.load(row_signs + group)
                b_row = tl.load(row_signs + GROUPS + group)
                turned = tl.where(group % 2 == 0, 1.0, -1.0)
            for left in range(0, COLUMN_SIZE, WIDTH):
                column = (column_cell * COLUMN_SIZE - column_shift + left)[:, None, None] + place[
                    None
                ]
                here = (at + left)[:, None, None] + place[None]
                at_table = tl.broadcast_to((left + place)[None], (AT_ONCE, LANES, ITEMS))
                table = _keys(column_table, at_table, COLUMN_SIZE, DTYPE)
                w0, k0 = _line(words, here, column, columns, row, rows, is_cell, own, IS_WHOLE)
                x0 = _value(w0, DTYPE)
                if GROUP == 1:
                    first = x0
                    second = x0
                    added = x0
                    squared = x0 * x0
                    largest = tl.abs(x0)
                    hashed = w0 * k0
                if GROUP >= 2:
                    w1, k1 = _line(
                        *(words, here + stride, column, columns, row + 1, rows),
                        *(is_cell, own + key_stride, IS_WHOLE),
                    )
                    x1 = _value(w1, DTYPE)
                if GROUP == 2:
                    first = x0 + x1
                    second = x0 - x1
                    added = first
                    squared = x0 * x0 + x1 * x1
                    largest = tl.maximum(tl.abs(x0), tl.abs(x1))
                    hashed = w0 * k0 + w1 * k1
                if GROUP == 4:
                    w2, k2 = _line(
                        *(words, here + 2 * stride, column, columns, row + 2, rows),
                        *(is_cell, own + 2 * key_stride, IS_WHOLE),
                    )
                    w3, k3 = _line(
                        *(words, here + 3 * stride, column, columns, row + 3, rows),
                        *(is_cell, own + 3 * key_stride, IS_WHOLE),
                    )
                    x2 = _value(w2, DTYPE)
                    x3 = _value(w3, DTYPE)
                    upper = x0 + x1
                    lower = x2 - x3
                    if GROUPS == 1:  # + + + - and + + - +
                        first = upper + lower
                        second = upper - lower
                    else:  # the second half of a larger cell takes the other signs
                        first = upper + lower * turned
                        second = first
                    added = upper + (x2 + x3)
                    squared = x0 * x0 + x1 * x1 + x2 * x2 + x3 * x3
                    largest = tl.maximum(
                        tl.maximum(tl.abs(x0), tl.abs(x1)), tl.maximum(tl.abs(x2), tl.abs(x3))
                    )
                    hashed = w0 * k0 + w1 * k1 + w2 * k2 + w3 * k3
                squares += tl.sum(squared, axis=2)
                total += tl.sum(added, axis=2)
                peak = tl.maximum(peak, tl.max(largest, axis=2))
                digest += tl.sum(hashed * table, axis=2)
                first_a = tl.sum(_signed(first, table), axis=2)
                if COLUMN_SIZE >= 2 * WIDTH:  # the second half of the columns takes the other sign
                    other = tl.where(left < COLUMN_SIZE // 2, 1.0, -1.0)
                    first_b = first_a * other
                else:
                    first_b = tl.sum(_signed(first, table << 1), axis=2)
                if GROUPS > 1:
                    aa += a_row * first_a
                    ab += a_row * first_b
                    ba += b_row * first_a
                    bb += b_row * first_b
                else:
                    aa += first_a
                    ab += first_b
                    if ROW_SIZE > 1:
                        second_a = tl.sum(_signed(second, table), axis=2)
                        ba += second_a
                        if COLUMN_SIZE >= 2 * WIDTH:
                            bb += second_a * other
                        else:
                            bb += tl.sum(_signed(second, table << 1), axis=2)
        each: tl.constexpr = (2 if ROW_SIZE > 1 else 1) * (2 if COLUMN_SIZE > 1 else 1)
        into = sums + each * cell
        tl.store(into, tl.sum(aa, axis=1), mask=is_cell)
        if COLUMN_SIZE > 1:
            tl.store(into + 1, tl.sum(ab, axis=1), mask=is_cell)
        if ROW_SIZE > 1:
            tl.store(into + each // 2, tl.sum(ba, axis=1), mask=is_cell)
            if COLUMN_SIZE > 1:
                tl.store(into + 3, tl.sum(bb, axis=1), mask=is_cell)
    own_totals = totals + 4 * program
    tl.store(own_totals, tl.sum(tl.sum(squares, axis=1)))
    tl.store(own_totals + 1, tl.sum(tl.sum(total, axis=1)))
    tl.store(own_totals + 2, tl.max(tl.max(peak, axis=1)))
    bits = tl.sum(tl.sum(digest, axis=1)).to(tl.uint32)
    tl.store(own_totals + 3, bits.to(tl.float32, bitcast=True))


@triton.jit(do_not_specialize=["words", "sums", "totals"])
def sketch_kernel(
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
    LANES: tl.constexpr,
    ITEMS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
):
    _sketched(
        _words(words, DTYPE, IS_ALIGNED),
        sums.to(tl.pointer_type(tl.float32)),
        totals.to(tl.pointer_type(tl.float32)),
        *(row_signs, column_table, rows, inner, columns, row_cells, column_cells, cell_count),
        *(row_shift, column_shift, tl.program_id(0), tl.num_programs(0)),
        *(DTYPE, ROW_SIZE, COLUMN_SIZE, AT_ONCE, LANES, ITEMS, IS_WHOLE),
    )


@triton.jit
def sketch_many_kernel(
    jobs,
    owners,
    row_signs,
    column_table,
    DTYPE: tl.constexpr,
    ROW_SIZE: tl.constexpr,
    COLUMN_SIZE: tl.constexpr,
    AT_ONCE: tl.constexpr,
    LANES: tl.constexpr,
    ITEMS: tl.constexpr,
    IS_WHOLE: tl.constexpr,
    IS_ALIGNED: tl.constexpr,
):
    job = jobs + 13 * tl.load(owners + tl.program_id(0))
    _sketched(
        _words(tl.load(job), DTYPE, IS_ALIGNED),
        tl.load(job + 1).to(tl.pointer_type(tl.float32)),
        tl.load(job + 2).to(tl.pointer_type(tl.float32)),
        *(row_signs, column_table, tl.load(job + 5).to(tl.int32), tl.load(job + 6).to(tl.int32)),
        *(tl.load(job + 7).to(tl.int32), tl.load(job + 8).to(tl.int32)),
        *(tl.load(job + 9).to(tl.int32), tl.load(job + 10).to(tl.int32)),
        *(tl.load(job + 11).to(tl.int32), tl.load(job + 12).to(tl.int32)),
        tl.program_id(0) - tl.load(job + 3).to(tl.int32),
        tl.load(job + 4).to(tl.int32),
        *(DTYPE, ROW_SIZE, COLUMN_SIZE, AT_ONCE, LANES, ITEMS, IS_WHOLE),
    )


@triton.jit
def _counted(
    words,
    counts,
    stretches,
    program,
    DTYPE: tl.constexpr,
    STRETCH: tl.constexpr,
    SAMPLED: tl.constexpr,
    COUNTERS: tl.constexpr,
    BINS: tl.constexpr,
):
    place = tl.arange(0, STRETCH)
    found = tl.zeros((BINS,), tl.int32)
    for number in range(program, stretches, COUNTERS):
        at = tl.cast(number, tl.int64) * (STRETCH * SAMPLED) + place
        x = _value(tl.load(words + at).to(tl.uint32), DTYPE)
        found += tl.histogram(((x.to(tl.int32, bitcast=True) >> 25) & 63), BINS)
    tl.store(counts + BINS * program + tl.arange(0, BINS), found)


@triton.jit(do_not_specialize=["words", "counts", "stretches"])
def count_kernel(
    words,
    counts,
    stretches,
    DTYPE: tl.constexpr,
    STRETCH: tl.constexpr,
    SAMPLED: tl.constexpr,
    COUNTERS: tl.constexpr,
    BINS: tl.constexpr,
):
    _counted(
        _words(words, DTYPE, False),
        counts.to(tl.pointer_type(tl.int32)),
        *(stretches, tl.program_id(0), DTYPE, STRETCH, SAMPLED, COUNTERS, BINS),
    )


@triton.jit
def count_many_kernel(
    jobs,
    DTYPE: tl.constexpr,
    STRETCH: tl.constexpr,
    SAMPLED: tl.constexpr,
    COUNTERS: tl.constexpr,
    BINS: tl.constexpr,
):
    job = jobs + 3 * (tl.program_id(0) // COUNTERS)
    _counted(
        _words(tl.load(job), DTYPE, False),
        tl.load(job + 1).to(tl.pointer_type(tl.int32)),
        tl.load(job + 2).to(tl.int32),
        tl.program_id(0) % COUNTERS,
        *(DTYPE, STRETCH, SAMPLED, COUNTERS, BINS),
    )


@triton.jit
def copy_many_kernel(jobs, WIDTH: tl.constexpr):
    job = jobs + 3 * tl.program_id(0)
    source = tl.load(job).to(tl.pointer_type(tl.uint8))
    into = tl.load(job + 1).to(tl.pointer_type(tl.uint8))
    size = tl.load(job + 2)
    for start in range(0, size, WIDTH):
        place = start + tl.arange(0, WIDTH)
        tl.store(into + place, tl.load(source + place, mask=place < size), mask=place < size)


@triton.jit
def finish_kernel(
    jobs,
    MOST: tl.constexpr,
    SAMPLED: tl.constexpr,
    COUNTERS: tl.constexpr,
    BINS: tl.constexpr,
):
    job = jobs + 4 * tl.program_id(0)
    totals = tl.load(job).to(tl.pointer_type(tl.float32))
    place = tl.arange(0, MOST)
    is_there = place < tl.load(job + 1)
    squares = tl.load(totals + 4 * place, mask=is_there, other=0.0).to(tl.float64)
    total = tl.load(totals + 4 * place + 1, mask=is_there, other=0.0).to(tl.float64)
    peak = tl.load(totals + 4 * place + 2, mask=is_there, other=0.0)
    digest = tl.load(totals + 4 * place + 3, mask=is_there, other=0.0)
    into = tl.load(job + 3)
    numbers = into.to(tl.pointer_type(tl.float64))
    tl.store(numbers, tl.sum(squares))
    tl.store(numbers + 1, tl.sum(total))
    tl.store(numbers + 2, tl.max(peak).to(tl.float64))
    words = into.to(tl.pointer_type(tl.uint32))
    tl.store(words + 6, tl.sum(digest.to(tl.uint32, bitcast=True)))
    tl.store(words + 7, tl.zeros((), tl.uint32))
    counts = tl.load(job + 2)
    if counts != 0:
        bins = tl.arange(0, BINS)
        each = bins[None, :] + BINS * tl.arange(0, COUNTERS)[:, None]
        found = tl.load(counts.to(tl.pointer_type(tl.uint32)) + each)
        tl.store(words + 8 + bins, tl.sum(found, axis=0) * SAMPLED)
