"""Room on a device for what a step leaves of its tensors: kernels fill it, and it is fetched once.

    chunk on the device   | fingerprint | a small tensor | fingerprint | ...   filled in the hooks
    pinned memory         | the same, copied when the chunk is full or the step is over

Enters: tensors of one stream of a device, in a hook. Leaves: slots that give bytes when the step is
over. No hook waits for the device, and no bytes of a step are fetched by themselves. What a device
does is behind `ArenaDevice`: it must not know kernels, nor torch.cuda.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch

from ttrace.measure.fingerprint import PrintForm

CHUNK_BYTES = 16 << 20  # chosen: of a step of a model of 1.7 B parameters there are about four
_ALIGNMENT = 16  # of every slot: the widest load


class Ready(Protocol):
    """An event of a device: `synchronize` returns when it came."""

    def synchronize(self) -> object: ...


class Fetched:
    """Bytes on the host, which are there once an event came."""

    __slots__ = ("_data", "_ready")

    def __init__(self, data: memoryview, ready: Ready) -> None:
        self._data = data
        self._ready: Ready | None = ready

    def data(self) -> memoryview:
        if self._ready is not None:
            self._ready.synchronize()
            self._ready = None
        return self._data


class ArenaDevice(Protocol):
    """One stream of a device; every call returns at once, and is done in the order of the calls."""

    def zeros(self, size_bytes: int) -> torch.Tensor: ...

    def fingerprint(
        self, tensor: torch.Tensor, form: PrintForm, room: torch.Tensor, at: int
    ) -> None:
        """Put the fingerprint of a contiguous tensor into `room`, from byte `at` on."""

    def copy(self, tensor: torch.Tensor, room: torch.Tensor, at: int) -> None:
        """Put the bytes of a contiguous tensor there."""

    def batch(self, tensors: Sequence[torch.Tensor], batch: TensorBatch) -> Fetched:
        """Begin to make what a batch has of each of these contiguous tensors, and to copy it."""

    def fetch(self, room: torch.Tensor, size_bytes: int) -> Fetched:
        """Begin to copy the first bytes of a room to the host."""


class TensorBatch:
    """Many tensors that are met together, step after step: the form of each, or None if whole.

    Made once; a device may keep beside it what it needs each time.
    """

    def __init__(self, forms: Sequence[PrintForm | None], sizes: Sequence[int]) -> None:
        """`sizes` are the bytes of each, as they are stored."""
        self.forms = tuple(forms)
        self.sizes = tuple(sizes)
        self.starts: list[int] = []
        self.size_bytes = 0
        for size in sizes:
            self.starts.append(self.size_bytes)
            self.size_bytes += size + -size % _ALIGNMENT


class Slot:
    """Some bytes of a chunk, or of a batch; calling it gives them, and waits for them."""

    __slots__ = ("_source", "_start", "size_bytes")

    def __init__(self, source: _Chunk | Fetched, start: int, size_bytes: int) -> None:
        self._source = source
        self._start = start
        self.size_bytes = size_bytes

    def __call__(self) -> memoryview:
        return self._source.data()[self._start : self._start + self.size_bytes]


class _Chunk:
    """Some bytes on the device, then on their way to the host."""

    def __init__(self, device: ArenaDevice, size_bytes: int) -> None:
        self._device = device
        self.room = device.zeros(size_bytes)
        self.size_bytes = size_bytes
        self.used = 0
        self._fetched: Fetched | None = None

    def has_room_for(self, size_bytes: int) -> bool:
        """Not once it is on its way: somebody may have asked for bytes before the step was over."""
        return self._fetched is None and self.used + size_bytes <= self.size_bytes

    def fetch(self) -> None:
        """Queue the copy to the host, behind everything that fills the chunk."""
        if self._fetched is None:
            self._fetched = self._device.fetch(self.room, self.used)
            del self.room  # whoever gets its memory next does so behind the copy

    def data(self) -> memoryview:
        self.fetch()
        assert self._fetched is not None
        return self._fetched.data()


class Arena:
    """The chunks of one stream of a device."""

    def __init__(self, device: ArenaDevice) -> None:
        self._device = device
        self._open: _Chunk | None = None

    def fingerprint(self, tensor: torch.Tensor, form: PrintForm) -> Slot:
        """Queue the fingerprint of a contiguous tensor."""
        chunk, start = self._take(form.size_bytes)
        self._device.fingerprint(tensor, form, chunk.room, start)
        return Slot(chunk, start, form.size_bytes)

    def copy(self, tensor: torch.Tensor) -> Slot:
        """Queue a copy of a small tensor."""
        plain = tensor.detach().resolve_conj().resolve_neg().contiguous()
        chunk, start = self._take(plain.nbytes)
        if plain.nbytes:
            self._device.copy(plain, chunk.room, start)
        return Slot(chunk, start, plain.nbytes)

    def batch(self, tensors: Sequence[torch.Tensor], batch: TensorBatch) -> Slot:
        """Queue all of them; `batch.starts` are where each begins in the slot."""
        return Slot(self._device.batch(tensors, batch), 0, batch.size_bytes)

    def end_step(self) -> None:
        """Begin to fetch what is there; what is put from now on goes into another chunk."""
        if self._open is not None:
            self._open.fetch()
            self._open = None

    def _take(self, size_bytes: int) -> tuple[_Chunk, int]:
        size_bytes += -size_bytes % _ALIGNMENT
        chunk = self._open
        if chunk is None or not chunk.has_room_for(size_bytes):
            self.end_step()
            chunk = self._open = _Chunk(self._device, max(CHUNK_BYTES, size_bytes))
        start = chunk.used
        chunk.used += size_bytes
        return chunk, start
