"""Quantised tensors that a step meets are recorded as their codes and scales."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

from tests.support.capturing import Calling, Recorded, record
from tests.support.kept import Kept, trained
from ttrace.adapters.base import BoundarySpec, somewhere
from ttrace.adapters.registry import find_adapter
from ttrace.capture.recorder import as_kept
from ttrace.core.ids import TensorId
from ttrace.core.record import Record
from ttrace.trace.fingerprint import is_fingerprint
from ttrace.trace.quantised import is_quantised

VALUES = torch.randn(16, 24, generator=torch.Generator().manual_seed(0))


class Quantise(nn.Module):
    def forward(self, x: torch.Tensor) -> Kept:
        return trained(x.detach(), 50.0)


class Use(nn.Module):
    def forward(self, x: Kept) -> torch.Tensor:
        return x.dequantize()


def recorded(folder: Path) -> Recorded:
    model = Calling(lambda self, x: self.use(self.quantise(x)), quantise=Quantise(), use=Use())
    return record(folder, model, lambda: model(VALUES))


def test_codes_and_scales_are_stored_once(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace")
    made, used = (trace.record(name) for name in ("quantise:output.0", "use:input.0"))
    assert is_quantised(made)
    assert made.dtype == "float32"
    assert made.location is not None
    assert made.location.size_bytes == 16 * 24 + 4
    assert (used.same_as, used.location, used.payload) == (made.id, made.location, made.payload)
    assert not is_quantised(trace.record("use:output.0"))
    assert trace.summary.faults == ()


def test_values_are_what_they_stand_for(tmp_path: Path) -> None:
    trace = recorded(tmp_path / "trace")
    expected = trained(VALUES, 50.0).stands_for
    for name in ("quantise:output.0", "use:input.0", "use:output.0"):
        assert torch.equal(trace.value(name), expected)


def test_later_changes_of_the_codes_are_not_in_the_trace(tmp_path: Path) -> None:
    def overwrite(self: Any, x: torch.Tensor) -> torch.Tensor:
        kept: Any = self.quantise(x)
        kept._data.zero_()
        return x

    model = Calling(overwrite, quantise=Quantise())
    trace = record(tmp_path / "trace", model, lambda: model(VALUES))
    assert torch.equal(trace.value("quantise:output.0"), trained(VALUES, 50.0).stands_for)


def test_a_run_of_fingerprints_has_those_of_the_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.support.capturing.Settings", fingerprints)
    values = torch.randn(256, 512)
    model = Calling(lambda self, x: self.quantise(x), quantise=Quantise())
    trace = record(tmp_path / "trace", model, lambda: model(values))
    assert is_fingerprint(trace.record("quantise:output.0"))


def fingerprints(**known: Any) -> Any:
    from ttrace.capture.settings import Settings

    return Settings(**known, payload="fingerprint")


def record_of(*shape: int) -> Record:
    id_ = TensorId.parse("step0/a:output.0")
    return Record(id=id_, rank=0, sequence=0, dtype="float32", shape=shape)


def test_dims_that_a_boundary_reorders_take_their_scales_along() -> None:
    adapter = find_adapter(nn.Linear(1, 1))
    tensor = trained(VALUES, 50.0)
    turned = VALUES.t()
    boundary = BoundarySpec(slot="0", dims=(1, 0))
    made, packed = as_kept(record_of(24, 16), turned, adapter.quantised(tensor), boundary)
    assert made.payload is not None
    assert made.payload.parameters["block"] == [24, 16]
    codes: Any = tensor
    assert torch.equal(packed[:-4], codes._data.view(torch.uint8).t().flatten())


@pytest.mark.parametrize("shape", [(384,), (8, 48)])
def test_elements_that_are_grouped_otherwise_are_recorded_by_their_values(
    shape: tuple[int, ...],
) -> None:
    adapter = find_adapter(nn.Linear(1, 1))
    made, values = as_kept(
        record_of(*shape), VALUES, adapter.quantised(trained(VALUES, 50.0)), somewhere("0")
    )
    assert made.payload is None
    assert values is VALUES


def test_the_local_tensor_of_a_dtensor_is_known() -> None:
    dist.init_process_group("fake", rank=1, world_size=2)
    try:
        mesh = init_device_mesh("cpu", (2,), mesh_dim_names=("tp",))
        tensor = DTensor(
            trained(VALUES, 50.0),
            DTensor.from_local(VALUES, mesh, [Shard(0)])._spec,
            requires_grad=False,
        )
        adapter = find_adapter(nn.Linear(1, 1))
        kept = adapter.quantised(tensor)
        local, layout = adapter.to_local(tensor)
    finally:
        dist.destroy_process_group()
    assert kept is not None
    assert kept.form.divides
    assert layout is not None
    assert layout.local_shape == (16, 24)
    assert torch.equal(local, trained(VALUES, 50.0).stands_for)
