"""Room on a GPU for what a step leaves of its tensors: kernels fill it, and it is fetched once.

    chunk on the device   | fingerprint | a small tensor | fingerprint | ...   filled in the hooks
    pinned memory         | the same, copied when the chunk is full or the first bytes are wanted

Enters: CUDA tensors, in a hook. Leaves: functions that give bytes, called when the step is over. No
hook waits for the device, and no bytes of a step are fetched by themselves. All calls of torch.cuda
that fingerprints need are here; Triton is imported when the first is made.
"""

from __future__ import annotations

import functools
from collections.abc import Callable

import numpy as np
import torch

from ttrace.measure.cells import Cells, View
from ttrace.measure.fingerprint import EXPONENTS, Fingerprint

CHUNK_BYTES = 16 << 20  # chosen: of a step of a model of 1.7 B parameters there are about six
_ALIGNMENT = 16
_WORD = 4


class _Chunk:
    """Some bytes on the device and, once they are fetched, on the host."""

    def __init__(self, device: torch.device, size_bytes: int) -> None:
        with torch.inference_mode(mode=False):
            self.room = torch.zeros(size_bytes, dtype=torch.uint8, device=device)
        self.used = 0
        self._host: torch.Tensor | None = None
        self._there: torch.cuda.Event | None = None

    def fetch(self) -> None:
        """Queue the copy to the host, behind everything that fills the chunk."""
        if self._host is None:
            with torch.inference_mode(mode=False):
                self._host = torch.empty(self.used, dtype=torch.uint8, pin_memory=True)
            self._host.copy_(self.room[: self.used], non_blocking=True)
            self._there = torch.cuda.Event(blocking=True)
            self._there.record()
            # The next chunk of a step takes the same memory, behind the copy on this stream.

    def bytes(self, start: int, size_bytes: int) -> memoryview:
        self.fetch()
        assert self._host is not None
        assert self._there is not None
        self._there.synchronize()
        return self._host[start : start + size_bytes].numpy().data


class Arena:
    """The chunks of one device."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._open: _Chunk | None = None

    def fingerprint(
        self, tensor: torch.Tensor, cells: Cells, *, with_exponents: bool
    ) -> Callable[[], memoryview]:
        """Queue the fingerprint of a contiguous tensor; a function that gives its bytes."""
        from ttrace.measure import fingerprint_triton as triton

        view = View.of(tuple(tensor.shape), cells)
        sums_bytes = _WORD * view.cells * 2 ** len(cells.signed)
        totals_bytes = _WORD * triton.TOTALS * triton.PROGRAMS
        chunk, start = self._take(sums_bytes + totals_bytes + _WORD * EXPONENTS)
        totals_at = start + sums_bytes
        counts_at = totals_at + totals_bytes
        with torch.cuda.device(self._device):
            triton.sketch_on_device(
                tensor,
                view,
                chunk.room[start:totals_at].view(torch.float32),
                chunk.room[totals_at:counts_at].view(torch.float32),
            )
            sampled = 0
            if with_exponents:
                counts = chunk.room[counts_at : counts_at + _WORD * EXPONENTS].view(torch.int32)
                sampled = triton.count_exponents_on_device(tensor, counts)
        sizes = (sums_bytes, totals_bytes)
        return functools.partial(
            _finished, chunk, start, sizes, tuple(tensor.shape), cells, sampled, with_exponents
        )

    def copy(self, tensor: torch.Tensor) -> Callable[[], memoryview]:
        """Queue a copy of a small tensor; a function that gives its bytes."""
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        chunk, start = self._take(plain.nbytes)
        if plain.nbytes:
            room = chunk.room[start : start + plain.nbytes]
            room.copy_(plain.reshape(-1).view(torch.uint8), non_blocking=True)
        return functools.partial(chunk.bytes, start, plain.nbytes)

    def _take(self, size_bytes: int) -> tuple[_Chunk, int]:
        size_bytes += -size_bytes % _ALIGNMENT
        chunk = self._open
        if chunk is None or chunk.used + size_bytes > chunk.room.numel():
            if chunk is not None:
                chunk.fetch()
            chunk = self._open = _Chunk(self._device, max(CHUNK_BYTES, size_bytes))
        start = chunk.used
        chunk.used += size_bytes
        return chunk, start

    def end_step(self) -> None:
        """What is put from now on goes into another chunk."""
        self._open = None


def _finished(
    chunk: _Chunk,
    start: int,
    sizes: tuple[int, int],
    shape: tuple[int, ...],
    cells: Cells,
    sampled: int,
    has_exponents: bool,  # noqa: FBT001
) -> memoryview:
    """The bytes of a fingerprint: what its programs left is added up here."""
    sums_bytes, totals_bytes = sizes
    data = chunk.bytes(start, sums_bytes + totals_bytes + _WORD * EXPONENTS)
    sums = np.frombuffer(data[:sums_bytes], dtype="<f4")
    totals = np.frombuffer(data[sums_bytes : sums_bytes + totals_bytes], dtype="<f4")
    totals = totals.reshape(-1, 4)
    counts = np.frombuffer(data[sums_bytes + totals_bytes :], dtype="<u4")
    digests = totals[:, 3].copy().view("<u4").astype(np.uint64)
    found = Fingerprint(
        squares=float(totals[:, 0].astype(np.float64).sum()),
        total=float(totals[:, 1].astype(np.float64).sum()),
        peak=float(totals[:, 2].max()),
        digest=int(digests.sum() & np.uint64(0xFFFFFFFF)),
        sums=sums.reshape(cells.sums_shape(shape)),
        exponents=counts * np.uint32(sampled) if has_exponents else None,
    )
    return memoryview(found.to_bytes())
