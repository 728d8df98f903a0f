"""Slots give the bytes that a tensor had, however they lie on a device, and wait no sooner."""

from __future__ import annotations

import threading

import pytest
import torch

from tests.support.fake_arena import NOT_YET, FakeArenaDevice
from ttrace.core.ids import TensorId
from ttrace.core.record import Record
from ttrace.measure.fingerprint import PrintForm
from ttrace.trace import arena as arenas
from ttrace.trace.arena import Arena, ArenaDevice, Fetched, Slot, TensorBatch
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.fingerprint import FingerprintPayload
from ttrace.trace.payload import tensor_bytes

CHUNK = 256
PAYLOAD = FingerprintPayload(fewest=4)


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arenas, "CHUNK_BYTES", CHUNK)


@pytest.fixture
def device() -> FakeArenaDevice:
    return FakeArenaDevice()


@pytest.fixture
def arena(device: FakeArenaDevice) -> Arena:
    asked: ArenaDevice = device
    return Arena(asked)


def printing(tensor: torch.Tensor, kind: str = "grad") -> tuple[PrintForm, bytes]:
    """How its fingerprint is made, and that of the CPU."""
    record = Record(
        id=TensorId.parse(f"step0/a:{kind}.weight"),
        rank=0,
        sequence=0,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
    )
    _, later = PAYLOAD.encode(record, tensor)
    return PAYLOAD.stored(record).form, bytes(later())


def copied(tensor: torch.Tensor) -> bytes:
    return bytes(tensor_bytes(tensor))


def test_every_slot_has_its_own_bytes_also_when_chunks_fill_up(
    arena: Arena, device: FakeArenaDevice
) -> None:
    slots: list[Slot] = []
    expected: list[bytes] = []
    for number in range(40):
        tensor = torch.arange(number + 5, dtype=torch.float32).mul_(number).sub_(3)
        slots.append(arena.copy(tensor))
        expected.append(copied(tensor))
        wide = torch.randn(8, 16, generator=torch.Generator().manual_seed(number))
        form, data = printing(wide)
        slots.append(arena.fingerprint(wide, form))
        expected.append(data)
    assert len(device.room_bytes) > 20
    assert [bytes(slot()) for slot in slots] == expected
    assert [slot.size_bytes for slot in slots] == [len(data) for data in expected]
    assert bytes(slots[0]()) != bytes(slots[2]())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", ["grad", "param"])
@pytest.mark.parametrize("shape", [(64,), (8, 16), (3, 5, 17), (2, 2, 2, 31)])
def test_a_device_is_told_all_that_a_fingerprint_needs(
    arena: Arena, shape: tuple[int, ...], kind: str, dtype: torch.dtype
) -> None:
    tensor = torch.randn(shape).to(dtype)
    form, expected = printing(tensor, kind)
    assert bytes(arena.fingerprint(tensor, form)()) == expected


def test_a_tensor_larger_than_a_chunk_gets_one_of_its_own(
    arena: Arena, device: FakeArenaDevice
) -> None:
    small, large = torch.ones(3), torch.arange(CHUNK, dtype=torch.float32)
    slots = [arena.copy(small), arena.copy(large), arena.copy(small + 1)]
    assert device.room_bytes == [CHUNK, 4 * CHUNK, CHUNK]
    assert [bytes(slot()) for slot in slots] == [*map(copied, (small, large, small + 1))]


@pytest.mark.parametrize("size", [CHUNK // 2, CHUNK // 2 + 1])
def test_a_chunk_is_filled_to_its_end_and_no_further(
    arena: Arena, device: FakeArenaDevice, size: int
) -> None:
    first, second = (torch.full((size,), value, dtype=torch.uint8) for value in (1, 2))
    slots = [arena.copy(first), arena.copy(second)]
    assert len(device.room_bytes) == (1 if 2 * size <= CHUNK else 2)
    assert [bytes(slot()) for slot in slots] == [copied(first), copied(second)]


def test_changes_after_the_call_do_not_reach_a_slot(arena: Arena) -> None:
    tensor, wide = torch.ones(3), torch.ones(8, 16)
    form, printed_before = printing(wide)
    batch = TensorBatch([None, form], [tensor.nbytes, form.size_bytes])
    slot, print_slot = arena.copy(tensor), arena.fingerprint(wide, form)
    together = arena.batch([tensor, wide], batch)
    tensor.zero_()
    wide.zero_()
    assert bytes(slot()) == copied(torch.ones(3)) != copied(tensor)
    assert bytes(print_slot()) == printed_before != printing(wide)[1]
    start = batch.starts[1]
    assert bytes(together()[: tensor.nbytes]) == copied(torch.ones(3))
    assert bytes(together()[start : start + form.size_bytes]) == printed_before


@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(6.0).view(2, 3).t(),
        torch.arange(6.0)[::2],
        torch.view_as_complex(torch.arange(6.0).view(3, 2)).conj(),
        torch.view_as_complex(torch.arange(6.0).view(3, 2)).conj().imag,
        torch.ones(2, requires_grad=True),
        torch.tensor(7),
        torch.tensor([True, False]),
    ],
    ids=["transposed", "strided", "conjugated", "negated", "leaf", "scalar", "bool"],
)
def test_a_copy_has_the_elements_in_their_order(arena: Arena, tensor: torch.Tensor) -> None:
    assert bytes(arena.copy(tensor)()) == copied(tensor)


def test_every_slot_begins_where_the_widest_load_may(arena: Arena) -> None:
    sizes = (1, 16, 17, 0, 3)
    slots = [arena.copy(torch.ones(size, dtype=torch.uint8)) for size in sizes]
    assert [slot._start for slot in slots] == [0, 16, 32, 64, 64]


def test_an_empty_tensor_has_no_bytes(arena: Arena) -> None:
    slot = arena.copy(torch.empty(0, 3))
    assert (slot.size_bytes, bytes(slot())) == (0, b"")


def test_what_is_put_after_the_end_of_a_step_is_in_another_chunk(
    arena: Arena, device: FakeArenaDevice
) -> None:
    first = arena.copy(torch.ones(3))
    arena.end_step()
    assert len(device.events) == 1
    second = arena.copy(torch.zeros(3))
    assert bytes(first()) == copied(torch.ones(3))
    assert len(device.events) == 1  # the second is not fetched with it
    assert bytes(second()) == copied(torch.zeros(3))
    assert len(device.room_bytes) == len(device.events) == 2


def test_bytes_may_be_asked_for_before_the_step_is_over(
    arena: Arena, device: FakeArenaDevice
) -> None:
    first = arena.copy(torch.ones(3))
    assert bytes(first()) == copied(torch.ones(3))
    second = arena.copy(torch.zeros(3))
    assert bytes(second()) == copied(torch.zeros(3))
    assert bytes(first()) == copied(torch.ones(3))
    assert len(device.room_bytes) == len(device.events) == 2


def test_within_a_step_a_chunk_is_shared_and_fetched_once(
    arena: Arena, device: FakeArenaDevice
) -> None:
    slots = [arena.copy(torch.full((3,), value)) for value in range(4)]
    assert device.events == []
    arena.end_step()
    arena.end_step()
    assert [bytes(slot()) for slot in slots] == [copied(torch.full((3,), n)) for n in range(4)]
    assert len(device.room_bytes) == len(device.events) == 1


def test_nobody_waits_before_bytes_are_asked_for(arena: Arena, device: FakeArenaDevice) -> None:
    slots = [arena.copy(torch.full((3,), value)) for value in range(40)]
    batch = arena.batch([torch.ones(2)], TensorBatch([None], [8]))
    arena.end_step()
    assert len(device.events) > 2
    assert not any(event.came for event in device.events)
    batch()
    slots[0]()
    assert sum(event.came for event in device.events) == 2


def test_bytes_that_are_read_before_their_event_came_are_not_there() -> None:
    """The companion: a slot that did not wait would be found by all of these tests."""

    class Hasty:
        def synchronize(self) -> None:
            """Does not."""

    device = FakeArenaDevice()
    fetched = device.fetch(torch.ones(4, dtype=torch.uint8), 4)
    hasty = Fetched(fetched._data, Hasty())
    assert bytes(Slot(hasty, 0, 4)()) == bytes([NOT_YET] * 4)
    assert bytes(Slot(fetched, 0, 4)()) == bytes([1] * 4)


def test_who_asks_for_bytes_waits_until_the_device_has_them(
    arena: Arena, device: FakeArenaDevice
) -> None:
    device.may_go_on.clear()
    slot, found = arena.copy(torch.ones(3)), []
    thread = threading.Thread(target=lambda: found.append(bytes(slot())))
    thread.start()
    thread.join(0.05)
    assert thread.is_alive()
    assert found == []
    device.may_go_on.set()
    thread.join()
    assert found == [copied(torch.ones(3))]


def test_a_batch_has_each_of_its_tensors_where_it_says(arena: Arena) -> None:
    tensors = [
        torch.ones(3),
        torch.randn(8, 16),
        torch.empty(0),
        torch.tensor(5),
        torch.ones(9, 16),
    ]
    forms = [printing(tensor)[0] if tensor.dim() == 2 else None for tensor in tensors]
    expected = [printing(t)[1] if t.dim() == 2 else copied(t) for t in tensors]
    batch = TensorBatch(forms, [len(data) for data in expected])
    data = arena.batch(tensors, batch)()
    assert all(start % 16 == 0 for start in batch.starts)
    found = [
        data[start : start + size] for start, size in zip(batch.starts, batch.sizes, strict=True)
    ]
    assert [bytes(part) for part in found] == expected
    assert data.nbytes == batch.size_bytes
