"""A device for arenas that is none: what it is asked for is computed here, and comes late."""

from __future__ import annotations

import threading
from collections.abc import Sequence

import pytest
import torch

from ttrace.measure.cells import Cells
from ttrace.measure.fingerprint import PrintForm, fingerprint_of
from ttrace.trace.arena import Arena, Fetched, TensorBatch
from ttrace.trace.gpu import Arenas
from ttrace.trace.payload import flat_bytes, tensor_bytes

NOT_YET = 0xEE  # what memory of the host has until an event came
_HANGS_S = 30  # chosen: who waits so long waits for ever


class LateEvent:
    """Comes when somebody synchronises with it, and not before the device may go on."""

    def __init__(self, may_come: threading.Event, host: torch.Tensor, data: torch.Tensor) -> None:
        self._may_come = may_come
        self._host, self._data = host, data
        self.came = False

    def synchronize(self) -> None:
        assert self._may_come.wait(_HANGS_S), "the device hangs"
        self._host.copy_(self._data)
        self.came = True


class FakeArenaDevice:
    """An ArenaDevice in the memory of the host. `faults`: what batches raise, by their number."""

    def __init__(self) -> None:
        self.may_go_on = threading.Event()
        self.may_go_on.set()
        self.room_bytes: list[int] = []  # of every room that was asked for
        self.events: list[LateEvent] = []  # of all that was fetched
        self.batches: list[TensorBatch] = []  # as they were asked for
        self.faults: dict[int, Exception] = {}

    def zeros(self, size_bytes: int) -> torch.Tensor:
        self.room_bytes.append(size_bytes)
        return torch.zeros(size_bytes, dtype=torch.uint8)

    def fingerprint(
        self, tensor: torch.Tensor, form: PrintForm, room: torch.Tensor, at: int
    ) -> None:
        room[at : at + form.size_bytes] = _as_tensor(printed(tensor, form))

    def copy(self, tensor: torch.Tensor, room: torch.Tensor, at: int) -> None:
        room[at : at + tensor.nbytes] = flat_bytes(tensor)

    def batch(self, tensors: Sequence[torch.Tensor], batch: TensorBatch) -> Fetched:
        number = len(self.batches)
        self.batches.append(batch)
        if number in self.faults:
            raise self.faults[number]
        room = torch.zeros(batch.size_bytes, dtype=torch.uint8)
        for tensor, form, start in zip(tensors, batch.forms, batch.starts, strict=True):
            if form is None:
                self.copy(tensor.detach(), room, start)
            else:
                self.fingerprint(tensor, form, room, start)
        return self.fetch(room, batch.size_bytes)

    def fetch(self, room: torch.Tensor, size_bytes: int) -> Fetched:
        host = torch.full((size_bytes,), NOT_YET, dtype=torch.uint8)
        event = LateEvent(self.may_go_on, host, room[:size_bytes].clone())
        self.events.append(event)
        return Fetched(tensor_bytes(host), event)


def printed(tensor: torch.Tensor, form: PrintForm) -> bytes:
    """The fingerprint of a tensor, by the view of it that a device is told."""
    view = form.view
    shaped = tensor.detach().reshape(view.outer, view.rows, view.inner, view.columns)
    cells = Cells(
        (1, view.row_size, 1, view.column_size), (0, view.row_shift, 0, view.column_shift)
    )
    return fingerprint_of(shaped, cells, with_exponents=form.has_exponents).to_bytes()


def take_for_gpu(monkeypatch: pytest.MonkeyPatch, device: FakeArenaDevice) -> None:
    """From now on every tensor says that it is on a GPU, whose arenas are on this device."""

    def of(arenas: Arenas, tensor: torch.Tensor) -> Arena:
        return arenas._known.setdefault((tensor.device, 0), Arena(device))

    monkeypatch.setattr(Arenas, "of", of)
    monkeypatch.setattr(torch.Tensor, "is_cuda", True)


def _as_tensor(data: bytes) -> torch.Tensor:
    return torch.frombuffer(bytearray(data), dtype=torch.uint8)
