"""Fingerprints on a GPU: one pass over a tensor, queued on the current stream; nothing waits.

Enters: addresses of contiguous CUDA tensors, their cells, and room on the device. Leaves: in that
room the bytes of fingerprint.py: up to the order of sums the same numbers, digests to the bit.

    sketch   sums of every cell into place; what each program adds up to, into scratch
    count    how many elements have which magnitude, of a sample, into scratch
    finish   what the programs of each tensor left in scratch, added up and put into place
    copy     bytes of tensors that are stored as they are

Those of an optimizer are many: there is a launch for all of them.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import triton

from ttrace.measure import fingerprint_kernels as kernels
from ttrace.measure.cells import View, signs
from ttrace.measure.fingerprint import EXPONENTS, column_keys

TOTALS_BYTES = 16  # that a program leaves: squares, sum and peak as floats, and the digest
# Measured on an H200, of 264 programs of 8 warps to 8,448 of one: these read most.
_PROGRAMS = 4224
_WARPS = 1
_SHARED_BY = 264  # chosen: programs for one of many tensors that are read at once
_ROWS = 4  # that a warp reads at once
_LANES = 32  # of a warp
LOAD_BYTES = 16  # the widest load of a lane
_COUNTERS = 128  # chosen: programs that count the magnitudes of a tensor
COUNTS_BYTES = 4 * EXPONENTS * _COUNTERS
_SAMPLED = 16  # of so many stretches of elements, the exponents of one are counted
_STRETCH = 4096  # elements; chosen
_KEPT = 1 << 12  # chosen: a model has few shapes
Numbers = npt.NDArray[np.int64]
_DTYPES = {
    torch.bfloat16: 0,
    torch.float16: 1,
    torch.float32: 2,
    torch.float8_e4m3fn: 3,
    torch.float8_e5m2: 4,
}
_MADE: dict[Any, Any] = {}  # kernels that read tables, by what they were compiled for
_COUNTS: dict[tuple[torch.device, torch.dtype], Launch] = {}  # what counts magnitudes
_COPIED = 1024  # bytes at a time; chosen
_WORDS = {1: torch.uint8, 2: torch.uint16, 4: torch.uint32}


class _Form(NamedTuple):
    """What kernels are compiled for."""

    dtype: int
    row_size: int
    column_size: int
    at_once: int
    lanes: int
    items: int
    is_whole: bool
    is_aligned: bool


@functools.lru_cache(_KEPT)
def programs_of(view: View, dtype: torch.dtype, *, is_one_of_many: bool) -> int:
    """How many programs share the pass over such a tensor; each leaves its totals."""
    at_once = _form(view, dtype, is_aligned=True).at_once
    return max(1, min(_SHARED_BY if is_one_of_many else _PROGRAMS, -(-view.cells // at_once)))


@functools.lru_cache(_KEPT)
def _form(view: View, dtype: torch.dtype, *, is_aligned: bool) -> _Form:
    items = min(LOAD_BYTES // dtype.itemsize, view.column_size)
    lanes = min(_LANES, view.column_size // items)
    cut = (view.rows % view.row_size, view.columns % view.column_size)
    return _Form(
        dtype=_DTYPES[dtype],
        row_size=view.row_size,
        column_size=view.column_size,
        at_once=_WARPS * _LANES // lanes,
        lanes=lanes,
        items=items,
        is_whole=not any((*cut, view.row_shift, view.column_shift)),
        is_aligned=is_aligned,
    )


@functools.cache
def _tables(device: torch.device, form: _Form) -> tuple[torch.Tensor, torch.Tensor]:
    """Signs of groups of rows, and the planes of the keys of columns."""
    rows = torch.from_numpy(signs(max(1, form.row_size // _ROWS)))
    keys = column_keys(form.column_size).astype("<u4")
    word = next(dtype for dtype, number in _DTYPES.items() if number == form.dtype).itemsize
    planes = keys.view(f"<u{word}").reshape(form.column_size, -1).T.copy()
    return rows.to(device), torch.from_numpy(planes.view(np.uint8)).to(device).view(_WORDS[word])


class Launch(NamedTuple):
    """A kernel that is compiled, with what is the same each time.

    Half of the time of a launch is looking for its kernel.
    """

    run: Callable[..., None]
    arguments: tuple[Any, ...]

    def again(self, *addresses: int) -> None:
        self.run(*addresses, *self.arguments)


def sketch(
    device: torch.device, address: int, dtype: torch.dtype, view: View, sums: int, totals: int
) -> Launch | None:
    """Queue the pass over one tensor; the last two are addresses of where its numbers go.

    The same for the next tensor with this view that is aligned alike, where it is compiled.
    """
    form = _form(view, dtype, is_aligned=not address % LOAD_BYTES)
    arguments = (
        *_tables(device, form),
        *(view.rows, view.inner, view.columns, view.row_cells, view.column_cells, view.cells),
        *(view.row_shift, view.column_shift),
        *form,
    )
    grid = (programs_of(view, dtype, is_one_of_many=False), 1, 1)
    made = kernels.sketch_kernel[grid](address, sums, totals, *arguments, num_warps=_WARPS)
    return None if made is None else Launch(made[grid], arguments)


class Passes:
    """Over many tensors whose kernels are compiled alike; made once, queued in every step.

    Sums and totals go to offsets from two addresses.
    """

    def __init__(self, jobs: Sequence[tuple[View, int, int]], dtype: torch.dtype) -> None:
        """Of each tensor its view, and the offsets of its sums and its totals."""
        self._view, self._dtype = jobs[0][0], dtype
        rows: list[tuple[int, ...]] = []
        owners: list[int] = []
        for number, (view, sums, totals) in enumerate(jobs):
            programs = programs_of(view, dtype, is_one_of_many=True)
            rows.append(
                (
                    *(0, sums, totals, len(owners), programs),
                    *(view.rows, view.inner, view.columns, view.row_cells, view.column_cells),
                    *(view.cells, view.row_shift, view.column_shift),
                )
            )
            owners += [number] * programs
        self._jobs = np.array(rows, dtype=np.int64)
        self._programs = len(owners)
        self.owners = np.array(owners, dtype=np.int32)

    def table(self, tensors: Numbers, sums: int, totals: int) -> Numbers:
        """What the kernel must know of tensors at these addresses."""
        jobs = self._jobs.copy()
        jobs[:, 0] = tensors
        jobs[:, 1] += sums
        jobs[:, 2] += totals
        return jobs

    def queue(self, jobs: torch.Tensor, owners: torch.Tensor, *, is_aligned: bool) -> None:
        """Both on the device."""
        form = _form(self._view, self._dtype, is_aligned=is_aligned)
        tables = _tables(jobs.device, form)
        _queue(kernels.sketch_many_kernel, self._programs, (jobs, owners, *tables), form, _WARPS)


def compiled_for(view: View, dtype: torch.dtype) -> object:
    """Equal where the same kernel reads both, if they are aligned alike."""
    return _form(view, dtype, is_aligned=True)


def stretches_of(elements: int) -> int:
    """How many stretches of a tensor are looked at for magnitudes; none of a small one."""
    return elements // (_STRETCH * _SAMPLED)


def count(
    device: torch.device, address: int, dtype: torch.dtype, stretches: int, counts: int
) -> None:
    """Queue counting of magnitudes; `counts` is the address of where they go."""
    launch = _COUNTS.get((device, dtype))
    if launch is not None:
        launch.again(address, counts, stretches)
        return
    arguments = (_DTYPES[dtype], _STRETCH, _SAMPLED, _COUNTERS, EXPONENTS)
    grid = (_COUNTERS, 1, 1)
    made = kernels.count_kernel[grid](address, counts, stretches, *arguments, num_warps=4)
    if made is not None:
        _COUNTS[device, dtype] = Launch(made[grid], arguments)


def count_many(dtype: torch.dtype, jobs: torch.Tensor, count: int) -> None:
    """The same of so many jobs: (address, counts, stretches)."""
    constants = (_DTYPES[dtype], _STRETCH, _SAMPLED, _COUNTERS, EXPONENTS)
    _queue(kernels.count_many_kernel, _COUNTERS * count, (jobs,), constants, 4)


def finish_many(jobs: torch.Tensor, count: int) -> None:
    """Queue adding up of (totals, programs, counts or 0, where the fingerprint begins)."""
    constants = (triton.next_power_of_2(_PROGRAMS), _SAMPLED, _COUNTERS, EXPONENTS)
    _queue(kernels.finish_kernel, count, (jobs,), constants, 8)


def copy_many(jobs: torch.Tensor, count: int) -> None:
    """Queue copies of (from, to, bytes)."""
    _queue(kernels.copy_many_kernel, count, (jobs,), (_COPIED,), 4)


def _queue(
    kernel: Any,
    programs: int,
    tables: Sequence[torch.Tensor],
    constants: tuple[Any, ...],
    warps: int,
) -> None:
    """Launch a kernel that reads tables, which begin at multiples of the alignment."""
    key = kernel, tables[0].device, constants
    made, grid = _MADE.get(key), (programs, 1, 1)
    if made is None:
        _MADE[key] = kernel[grid](*tables, *constants, num_warps=warps)
    else:
        made[grid](*tables, *constants)
