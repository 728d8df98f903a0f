"""What a device makes of all parameters at once is what would be recorded of each by itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from tests.support.capturing import Recorded
from tests.support.fake_arena import FakeArenaDevice, LateEvent, take_for_gpu
from tests.support.sheets_run import SUMS, model_of_two, trained
from ttrace.adapters.registry import find_adapter
from ttrace.capture.items import SMALL_BYTES, OwnTensor, Sheet, Sheets
from ttrace.core.ids import Kind
from ttrace.core.layout import Layout
from ttrace.core.record import Record
from ttrace.trace.fingerprint import FingerprintPayload, is_fingerprint
from ttrace.trace.spans import SpanReader

UNCHANGED = "no parameter was changed inside tracer.step()"
KINDS = 5  # that are recorded of all parameters in a step, the first to the last of these:
PARAM, MAIN_GRAD, _, _, PARAM_AFTER = range(KINDS)


@pytest.fixture
def device() -> FakeArenaDevice:
    return FakeArenaDevice()


def records(found: Recorded) -> tuple[Record, ...]:
    return tuple(found.trace.ranks[0].records)


def stored(found: Recorded) -> list[bytes | None]:
    with SpanReader(found.trace.path) as spans:
        return [
            None if at is None else bytes(spans.read(record, 0, at.size_bytes, None))
            for record in records(found)
            for at in [record.location]
        ]


def kinds(found: Recorded, step: int = 0) -> set[str]:
    return {record.id.kind.value for record in records(found) if record.id.step == step}


class TestTrace:
    def test_it_is_as_if_each_tensor_was_recorded_by_itself(
        self, tmp_path: Path, device: FakeArenaDevice
    ) -> None:
        alone = trained(tmp_path / "alone")
        together = trained(tmp_path / "together", device=device)
        assert len(device.batches) == 2 * KINDS
        assert [replace(record, location=None) for record in records(together)] == [
            replace(record, location=None) for record in records(alone)
        ]
        assert stored(together) == stored(alone)
        assert {is_fingerprint(record) for record in records(together)} == {False, True}
        assert together.trace.ranks[0].steps == alone.trace.ranks[0].steps
        assert together.summary.notes == together.summary.faults == ()

    def test_other_values_are_other_bytes(self, tmp_path: Path, device: FakeArenaDevice) -> None:
        """The companion: what is compared above can differ."""
        slow = trained(tmp_path / "slow", device=device, lr=0.1)
        fast = trained(tmp_path / "fast", device=device, lr=0.2)
        names = [str(record.id) for record in records(slow)]
        differ = {
            name
            for name, one, other in zip(names, stored(slow), stored(fast), strict=True)
            if one != other
        }
        assert "step0/0:param_after.weight" in differ
        assert not any(name.startswith("step0/0:param.") for name in differ)

    def test_on_a_cpu_each_tensor_is_recorded_by_itself(
        self, tmp_path: Path, device: FakeArenaDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        take_for_gpu(monkeypatch, device)
        monkeypatch.delattr(torch.Tensor, "is_cuda")  # which says what is true again
        found = trained(tmp_path)
        assert not device.batches
        assert not device.events
        assert {"param", "main_grad", "clipped_grad", "optimizer", "param_after"} < kinds(found)

    def test_sheets_of_equal_steps_are_made_once(
        self, tmp_path: Path, device: FakeArenaDevice
    ) -> None:
        trained(tmp_path, device=device, steps=3)
        assert [id(batch) for batch in device.batches] == [*map(id, device.batches[:KINDS])] * 3
        assert len(set(device.batches)) == KINDS

    @pytest.mark.parametrize("name", ["0:{}.weight", "0:{}.bias", "step1/1:{}.weight"])
    @pytest.mark.parametrize("lr", [0.0, 0.1])
    def test_equal_bytes_of_two_kinds_are_stored_once(
        self, tmp_path: Path, device: FakeArenaDevice, lr: float, name: str
    ) -> None:
        found = trained(tmp_path, device=device, lr=lr)
        before, after = (found.record(name.format(kind)) for kind in ("param", "param_after"))
        assert (before.location == after.location) == (lr == 0.0)

    @pytest.mark.parametrize("norm", [1e9, 1e-3])
    def test_a_small_gradient_that_clipping_left_alone_is_stored_once(
        self, tmp_path: Path, device: FakeArenaDevice, norm: float
    ) -> None:
        found = trained(tmp_path, device=device, norm=norm)
        before, after = (found.record(f"0:{kind}.bias") for kind in ("main_grad", "clipped_grad"))
        assert (before.location == after.location) == (norm > 1)

    def test_nothing_waits_for_the_device_before_a_step_is_over(
        self, tmp_path: Path, device: FakeArenaDevice
    ) -> None:
        device.may_go_on.clear()
        came: list[int] = []

        def between(number: int) -> None:
            came.append(sum(event.came for event in device.events))
            device.may_go_on.set()

        found = trained(tmp_path, device=device, steps=2, between=between)
        assert came[0] == 0
        assert found.trace.ranks[0].steps == trained(tmp_path / "alone").trace.ranks[0].steps


class TestFaults:
    @pytest.mark.parametrize("number", range(KINDS))
    def test_a_device_that_fails_loses_that_kind_only(
        self, tmp_path: Path, device: FakeArenaDevice, number: int
    ) -> None:
        device.faults[number] = RuntimeError("planted")
        found = trained(tmp_path, device=device)
        lost = ["param", "main_grad", "clipped_grad", "optimizer", "param_after"][number]
        assert kinds(found, 1) - kinds(found) == {lost}
        (fault,) = found.summary.faults
        assert fault.startswith(lost)
        assert "planted" in fault
        assert found.summary.notes == ()

    def test_what_cannot_be_fetched_is_named(
        self, tmp_path: Path, device: FakeArenaDevice, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        wait, left = LateEvent.synchronize, [True]  # the first that is waited for: parameters

        def fail(event: LateEvent) -> None:
            if left:
                left.pop()
                raise RuntimeError("planted")
            wait(event)

        monkeypatch.setattr(LateEvent, "synchronize", fail)
        found = trained(tmp_path, device=device)
        (fault,) = found.summary.faults
        assert fault == "4 tensors, param of each parameter: RuntimeError: planted"
        assert kinds(found, 1) - kinds(found) == {"param"}
        assert found.summary.notes == ()

    def test_a_gradient_that_is_not_dense_is_lost_alone(
        self, tmp_path: Path, device: FakeArenaDevice
    ) -> None:
        def words() -> torch.Tensor:
            return torch.tensor([1, 2])

        def model() -> nn.Module:
            return nn.Sequential(nn.Embedding(4, 16, sparse=True), nn.Linear(16, 32))

        sgd: dict[str, Any] = {"optimizer": torch.optim.SGD, "inputs": words, "norm": 0.0}
        alone = trained(tmp_path / "alone", model=model(), **sgd)
        together = trained(tmp_path / "together", model=model(), device=device, **sgd)
        assert together.ids == alone.ids
        assert "1:main_grad.weight" in together.ids
        assert "0:main_grad.weight" not in together.ids
        assert together.summary.faults == alone.summary.faults != ()


class TestNotes:
    @pytest.mark.parametrize("is_on_device", [False, True])
    @pytest.mark.parametrize("lr", [0.0, 0.1])
    def test_only_parameters_that_stay_are_said_to(
        self, tmp_path: Path, device: FakeArenaDevice, lr: float, is_on_device: bool
    ) -> None:
        found = trained(tmp_path, device=device if is_on_device else None, lr=lr, steps=2)
        expected = () if lr else (f"step 0: {UNCHANGED}", f"step 1: {UNCHANGED}")
        assert found.summary.notes == expected


PAYLOAD = FingerprintPayload(SUMS)
WEIGHT = torch.randn(32, 16, generator=torch.Generator().manual_seed(0))


class TestSheets:
    @pytest.fixture(autouse=True)
    def on_gpu(self, monkeypatch: pytest.MonkeyPatch, device: FakeArenaDevice) -> None:
        take_for_gpu(monkeypatch, device)

    def of(self, inside: Sequence[str] = ()) -> Sheets:
        return Sheets(FingerprintPayload(SUMS), find_adapter(model_of_two()), 0, inside)

    def test_a_sheet_is_made_anew_when_anything_of_a_tensor_changes(self) -> None:
        sheets, made = self.of(), []
        first = OwnTensor("a", "weight", WEIGHT, None)
        others = [
            (Kind.GRAD, first),
            (Kind.PARAM, first._replace(module="b")),
            (Kind.PARAM, first._replace(slot="bias")),
            (Kind.PARAM, first._replace(tensor=WEIGHT[:16])),
            (Kind.PARAM, first._replace(tensor=WEIGHT.bfloat16())),
            (Kind.PARAM, first._replace(layout=Layout.full((32, 16)))),
            (Kind.PARAM, first._replace(layout=Layout.full((64, 16)).shard(0, 0, 2))),
        ]
        known, _ = sheets.put(Kind.PARAM, [first])
        for kind, entry in others:
            made.append(sheets.put(kind, [entry])[0])
            assert sheets.put(kind, [entry._replace(tensor=entry.tensor.clone())])[0] is made[-1]
        assert sheets.put(Kind.PARAM, [first._replace(tensor=WEIGHT + 1)])[0] is known
        assert len({*made, known}) == len(others) + 1
        assert sheets.put(Kind.PARAM, [first, first._replace(slot="b")])[0] not in {*made, known}

    def test_forms_of_many_sheets_are_not_kept_for_ever(self) -> None:
        sheets = self.of()
        for number in range(200):
            sheets.put(Kind.PARAM, [OwnTensor(f"m{number}", "weight", WEIGHT, None)])
        assert len(sheets._known) <= 64

    def test_each_part_of_a_slot_is_that_of_its_record(self) -> None:
        small, whole = torch.ones(3), torch.arange(5)
        entries = [
            OwnTensor("a", name, tensor, None)
            for name, tensor in (("s", small), ("w", WEIGHT), ("i", whole), ("e", torch.empty(0)))
        ]
        sheet, slot = self.of().put(Kind.GRAD, entries)
        assert isinstance(sheet, Sheet)
        assert sheet.names == [("a", "s"), ("a", "w"), ("a", "i"), ("a", "e")]
        parts = [bytes(part) for part in sheet.parts(slot())]
        assert parts[0] == small.numpy().tobytes()
        assert parts[2] == whole.numpy().tobytes()
        assert len(parts[1]) < WEIGHT.nbytes
        assert parts[3] == b""

    def sorted_out(self, tensor: torch.Tensor, **how: Any) -> bool:
        """Whether it is on a sheet."""
        entry = OwnTensor("layers.0.a", "weight", tensor, None)
        together, alone = self.of(**how).sorted_out([entry])
        assert sum(map(len, together.values())) + len(alone) == 1
        return bool(together)

    @pytest.mark.parametrize(
        ("tensor", "is_taken"),
        [
            (WEIGHT, True),
            (WEIGHT.t(), False),
            (WEIGHT[:, ::2], False),
            (torch.ones(3, dtype=torch.int64), True),
            (torch.ones(SMALL_BYTES // 8, dtype=torch.float64), True),
            (torch.ones(SMALL_BYTES // 8 + 1, dtype=torch.float64), False),
            (torch.ones(SMALL_BYTES), True),
            (torch.view_as_complex(torch.ones(3, 2)).conj(), False),
            (torch.view_as_complex(torch.ones(3, 2)).conj().imag, False),
            (torch.ones(3, 2).to_sparse(), False),
        ],
    )
    def test_in_one_piece_and_small_or_made_small(
        self, tensor: torch.Tensor, is_taken: bool
    ) -> None:
        assert self.sorted_out(tensor) == is_taken

    @pytest.mark.parametrize(
        ("inside", "is_taken"),
        [((), True), (("layers.0",), False), (("layers.0.a",), False), (("layers.01",), True)],
    )
    def test_blocks_whose_values_are_wanted_are_recorded_by_themselves(
        self, inside: tuple[str, ...], is_taken: bool
    ) -> None:
        assert self.sorted_out(WEIGHT, inside=inside) == is_taken

    def test_what_is_wrong_with_a_tensor_is_told_where_it_is_recorded(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        sheets = self.of()

        def fail(tensor: torch.Tensor) -> None:
            raise ZeroDivisionError("planted")

        monkeypatch.setattr(sheets._adapter, "to_local", fail)
        entry = OwnTensor("a", "weight", WEIGHT, None)
        assert sheets.sorted_out([entry]) == ({}, [entry])

    def test_a_layout_that_does_not_fit_is_not_said(self) -> None:
        fits, other = Layout.full((16, 32)), Layout.full((16, 16))
        entries = [OwnTensor("a", "weight", WEIGHT, layout) for layout in (fits, other, None)]
        together, alone = self.of().sorted_out(entries)
        assert alone == []
        assert [found.layout for found in together[WEIGHT.device]] == [fits, None, None]
