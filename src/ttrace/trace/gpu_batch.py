"""A batch on a GPU: launches for many tensors at once, prepared as far as they stay the same.

Enters: addresses of tensors, step after step. Leaves: what the batch has of each, in a room of its
own. As long as the tensors stay where they are, the tables that kernels read stay, too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import torch

from ttrace.measure.fingerprint import PrintForm
from ttrace.trace.arena import TensorBatch

_NONE = -1  # no offset
_ALIGNMENT = 16  # of every table
_HALF_BYTES = 1 << 20  # chosen: the tables of several steps
_Numbers = npt.NDArray[np.int64]


class Tables:
    """Tables on their way to a device, in pinned memory that is used again and again.

    One half of it is filled while the device may still read the other.
    """

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host: torch.Tensor | None = None
        self._first, self._used = 0, 0  # of the half that is filled
        self._read: dict[int, torch.cuda.Event] = {}  # when all of a half was read

    def send(self, tables: Sequence[npt.NDArray[np.generic]]) -> list[torch.Tensor]:
        """Several at once, each as it is; they are there once the current stream comes to it."""
        starts, end = [], 0
        for table in tables:
            starts.append(end)
            end += table.nbytes + -table.nbytes % _ALIGNMENT
        host = self._take(end)
        flat = host.numpy()
        for table, start in zip(tables, starts, strict=True):
            flat[start : start + table.nbytes] = table.reshape(-1).view(np.uint8)
        with torch.inference_mode(mode=False):
            sent = torch.empty(end, dtype=torch.uint8, device=self._device)
            sent.copy_(host, non_blocking=True)
        return [
            sent[start : start + table.nbytes].view(torch.from_numpy(table[:0]).dtype)
            for table, start in zip(tables, starts, strict=True)
        ]

    def _take(self, size_bytes: int) -> torch.Tensor:
        if size_bytes > _HALF_BYTES:
            return _pinned(size_bytes)
        if self._host is None:
            self._host = _pinned(2 * _HALF_BYTES)
        if self._used + size_bytes > _HALF_BYTES:
            self._read[self._first] = torch.cuda.current_stream(self._device).record_event()
            self._first, self._used = _HALF_BYTES - self._first, 0
            if self._first in self._read:
                self._read[self._first].synchronize()  # steps ago
        start = self._first + self._used
        self._used += size_bytes + -size_bytes % _ALIGNMENT
        return self._host[start : start + size_bytes]


def _pinned(size_bytes: int) -> torch.Tensor:
    with torch.inference_mode(mode=False):
        return torch.empty(size_bytes, dtype=torch.uint8, pin_memory=True)


class PreparedBatch:
    """The launches of a batch: numbers and offsets of all that stays the same."""

    def __init__(self, batch: TensorBatch, room: torch.Tensor, tables: Tables) -> None:
        """`room` is zeros, in which it makes all of its bytes."""
        from ttrace.measure import fingerprint_triton as kernels

        self.room = room
        self.fetched: torch.cuda.Event | None = None  # when the host has what was made last
        self._tables = tables
        self._addresses: _Numbers | None = None  # for which `_sent` is
        self._sent: list[torch.Tensor] = []
        self._scratch_bytes = 0
        whole: list[tuple[int, ...]] = []
        finished: list[tuple[int, ...]] = []
        counted: dict[torch.dtype, list[tuple[int, ...]]] = defaultdict(list)
        alike: dict[object, list[tuple[int, PrintForm, int]]] = defaultdict(list)
        for number, (form, start) in enumerate(zip(batch.forms, batch.starts, strict=True)):
            if form is None:
                whole.append((number, start, batch.sizes[number]))
                continue
            programs = kernels.programs_of(form.view, form.dtype, is_one_of_many=True)
            totals, counts = self._take(kernels.TOTALS_BYTES * programs), _NONE
            stretches = kernels.stretches_of(form.elements) if form.has_exponents else 0
            if stretches:
                counts = self._take(kernels.COUNTS_BYTES)
                counted[form.dtype].append((number, counts, stretches))
            finished.append((totals, programs, counts, start))
            alike[kernels.compiled_for(form.view, form.dtype)].append((number, form, totals))
        self._whole = _columns(whole, 3)
        self._finished = _columns(finished, 4)
        self._counted = {dtype: _columns(rows, 3) for dtype, rows in counted.items()}
        self._passes = [
            (
                np.array([number for number, _, _ in some]),
                kernels.Passes(
                    [
                        (form.view, batch.starts[number] + form.sums_at, totals)
                        for number, form, totals in some
                    ],
                    some[0][1].dtype,
                ),
            )
            for some in alike.values()
        ]

        passes = [np.array([], dtype=np.int32), *(each.owners for _, each in self._passes)]
        self._owners = tables.send(passes)[1:]
        self._scratch = torch.empty(self._scratch_bytes, dtype=torch.uint8, device=room.device)

    def _take(self, size_bytes: int) -> int:
        start = self._scratch_bytes
        self._scratch_bytes += size_bytes
        return start

    def queue(self, addresses: _Numbers) -> None:
        """All of it, of tensors at these addresses."""
        from ttrace.measure import fingerprint_triton as kernels

        if self._addresses is None or not np.array_equal(addresses, self._addresses):
            self._sent = self._tables.send(self._made(addresses))
            self._addresses = addresses
        is_aligned = not (addresses % kernels.LOAD_BYTES).any()
        copies, finished, *others = self._sent
        if len(self._whole[0]):
            kernels.copy_many(copies, len(self._whole[0]))
        for (_, passes), owners in zip(self._passes, self._owners, strict=True):
            passes.queue(others.pop(0), owners, is_aligned=is_aligned)
        for dtype, (numbers, _, _) in self._counted.items():
            kernels.count_many(dtype, others.pop(0), len(numbers))
        if len(self._finished[0]):
            kernels.finish_many(finished, len(self._finished[0]))

    def _made(self, addresses: _Numbers) -> list[_Numbers]:
        """The tables of all launches, in the order in which `queue` takes them."""
        room, scratch = self.room.data_ptr(), self._scratch.data_ptr()
        numbers, starts, sizes = self._whole
        copies = np.stack([addresses[numbers], room + starts, sizes], axis=1)
        totals, programs, counts, starts = self._finished
        counts = np.where(counts == _NONE, 0, scratch + counts)
        finished = np.stack([scratch + totals, programs, counts, room + starts], axis=1)
        return [
            copies,
            finished,
            *(each.table(addresses[some], room, scratch) for some, each in self._passes),
            *(
                np.stack([addresses[some], scratch + counts, stretches], axis=1)
                for some, counts, stretches in self._counted.values()
            ),
        ]


def _columns(rows: Sequence[tuple[int, ...]], count: int) -> _Numbers:
    return np.array(rows, dtype=np.int64).reshape(-1, count).T
