"""A payload that another package brings is written, read and compared as the full one is."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

import ttrace
from attacks.forging import Forged
from tests.support.int8_blocks import BLOCK, Int8Blocks
from tests.support.payload_packages import install
from ttrace.adapters.registry import find_adapter
from ttrace.capture.settings import Settings
from ttrace.capture.step import RecordingTracer
from ttrace.capture.tracer import Attached
from ttrace.core.ids import TensorId
from ttrace.core.layout import Layout
from ttrace.core.logical import Piece
from ttrace.core.record import PayloadRef, RankInfo, Record, Summary
from ttrace.errors import CorruptTrace, UnsupportedTrace, UsageError
from ttrace.trace.blocks import BlockReader
from ttrace.trace.payload import FULL
from ttrace.trace.payloads import forget_installed, payload_for, payload_named
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter

INT8 = Int8Blocks()


@pytest.fixture(autouse=True)
def _forgotten() -> Iterator[None]:
    yield
    forget_installed()


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    install(monkeypatch, tmp_path / "site", "tests.support.int8_blocks:Int8Blocks")


def record_of(tensor: torch.Tensor, **more: Any) -> Record:
    id_ = TensorId.parse("step0/a:output.0")
    return Record(id=id_, rank=0, sequence=0, dtype="float32", shape=tuple(tensor.shape), **more)


def write(root: Path, tensor: torch.Tensor) -> Record:
    writer = TraceWriter(root, RankInfo(rank=0, world_size=1))
    written = writer.write(record_of(tensor), tensor, INT8)
    writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    return written


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("shape", [(), (0,), (7,), (BLOCK,), (5, 3, 11), (64, 4)])
def test_record_comes_back_within_the_precision_of_its_payload(
    tmp_path: Path, shape: tuple[int, ...]
) -> None:
    tensor = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    written = write(tmp_path / "trace", tensor)
    (record,) = Trace.open(tmp_path / "trace").ranks[0].records
    assert record == written
    assert record.payload == PayloadRef(name="int8_blocks", parameters={"block": BLOCK})
    with SpanReader(tmp_path / "trace") as spans:
        values = spans.load(record)
    assert values.shape == tensor.shape
    largest = float(tensor.abs().max()) if tensor.numel() else 0.0
    torch.testing.assert_close(values, tensor, rtol=0, atol=largest / 250)


@pytest.mark.usefixtures("installed")
def test_any_part_of_a_tensor_is_read_as_from_the_whole(tmp_path: Path) -> None:
    tensor = torch.randn(9, 13, generator=torch.Generator().manual_seed(0))
    record = write(tmp_path / "trace", tensor)
    piece = Piece(layout=Layout.full((9, 13)), records=(record,))
    with SpanReader(tmp_path / "trace") as spans:
        whole, reader = spans.load(record), BlockReader(spans)
        for start, stop in ((0, 9), (2, 3), (4, 8)):
            block = reader.read([piece], (9, 13), (start, 0), (stop, 13))
            assert block.equal(whole[start:stop])


@pytest.mark.usefixtures("installed")
def test_records_with_and_without_another_payload_stand_side_by_side(tmp_path: Path) -> None:
    tensor = torch.randn(100)
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    writer.write(record_of(tensor), tensor)
    writer.write(record_of(tensor), tensor, INT8)
    writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    full, other = Trace.open(tmp_path).ranks[0].records
    assert full.payload is None
    assert other.payload == PayloadRef(name="int8_blocks", parameters={"block": BLOCK})
    stored = load_file(tmp_path / "rank-00000" / "seg-00000.safetensors")
    named = {name: value.dtype for name, value in stored.items() if not name.startswith("__pad")}
    assert list(named.values()) == [torch.float32, torch.uint8]


def test_payload_that_no_package_brings_is_refused_by_name(tmp_path: Path) -> None:
    write(tmp_path, torch.ones(4))
    with pytest.raises(
        UnsupportedTrace, match=r"'int8_blocks', but there is only fingerprint, full; inst"
    ):
        Trace.open(tmp_path)
    with pytest.raises(UsageError, match="'int8_blocks' was asked for, but there is only fi"):
        payload_named("int8_blocks")
    assert payload_named("full") is FULL


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("parameters", [{}, {"block": 0}, {"block": "32"}, {"block": 1}])
def test_parameters_that_cannot_be_are_a_damaged_line(
    tmp_path: Path, parameters: dict[str, Any]
) -> None:
    write(tmp_path, torch.ones(40))
    forged = Forged(tmp_path / "rank-00000")
    forged.records[0]["payload"] = ["int8_blocks", parameters]
    forged.write()
    with pytest.raises(CorruptTrace, match="journal of rank 0 is damaged at this line"):
        Trace.open(tmp_path)


@pytest.mark.parametrize(
    ("value", "problem"),
    [
        ("tests.support.int8_blocks:Nothing", "AttributeError"),
        ("ttrace.trace.payload:FullPayload", "its class is called 'full'"),
    ],
)
def test_package_that_fails_is_named_only_to_who_needs_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, value: str, problem: str
) -> None:
    install(monkeypatch, tmp_path, value)
    assert payload_for(torch.ones(2), FULL) is FULL
    with pytest.raises(UsageError, match=problem):
        payload_named("int8_blocks")


def train(
    folder: Path, *, payload: str | None, scale: float = 1.0, noise_seed: int | None = None
) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 32), nn.Tanh(), nn.Linear(32, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model[2].register_forward_hook(lambda _module, _args, output: output * scale)
    tracer = RecordingTracer(
        find_adapter(model),
        Attached(model, [optimizer]),
        Settings(folder=folder, noise_seed=noise_seed, payload=payload),
    )
    with tracer.step():
        model(torch.randn(8, 16)).square().mean().backward()
        optimizer.step()


@pytest.mark.usefixtures("installed")
@pytest.mark.parametrize("scale", [1.0, 1.1])
def test_check_compares_runs_that_were_recorded_in_another_payload(
    tmp_path: Path, scale: float
) -> None:
    train(tmp_path / "reference", payload="int8_blocks")
    train(tmp_path / "perturbed", payload="int8_blocks", noise_seed=1)
    train(tmp_path / "candidate", payload="int8_blocks", scale=scale)
    records = Trace.open(tmp_path / "reference").ranks[0].records
    assert {r.payload.name for r in records if r.payload is not None} == {"int8_blocks"}
    result = ttrace.check(
        tmp_path / "reference", tmp_path / "candidate", perturbed=[tmp_path / "perturbed"]
    )
    assert result.exit_code == (0 if scale == 1.0 else 1)
    named = [culprit.evidence[0].module for culprit in result.culprits]
    assert named == ([] if scale == 1.0 else ["2"])


@pytest.mark.usefixtures("installed")
def test_full_and_another_payload_can_be_compared(tmp_path: Path) -> None:
    """What is asked for decides only how bytes are stored: both are values to a check."""
    train(tmp_path / "full", payload=None)
    train(tmp_path / "int8", payload="int8_blocks")
    id_ = TensorId.parse("step0/0:output.0")
    loaded = []
    for folder in (tmp_path / "full", tmp_path / "int8"):
        with SpanReader(folder) as spans:
            loaded.append(spans.load(Trace.open(folder).by_id()[id_][0]))
    full, int8 = loaded
    assert not full.equal(int8)
    torch.testing.assert_close(int8, full, rtol=0, atol=float(full.abs().max()) / 250)
