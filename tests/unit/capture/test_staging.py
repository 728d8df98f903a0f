"""From a GPU to a trace, with a device that is none."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.fake_gpu import FakeGpu
from ttrace.capture import memory, outbox
from ttrace.capture.memory import HostMemory, pieces
from ttrace.capture.outbox import Outbox
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.payload import tensor_bytes
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter

INFO = RankInfo(rank=0, world_size=1)
STAGE, PINNED = 4096, 8192  # so that most tensors come in portions


def record_of(number: int, tensor: torch.Tensor) -> Record:
    return Record(
        id=TensorId.parse(f"step0/m{number}:output.0"),
        rank=0,
        sequence=number,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
    )


@pytest.fixture
def put_all(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Callable[[FakeGpu, list[torch.Tensor]], list[torch.Tensor]]:
    """Record tensors of a device that changes each one right after that; what the trace has."""
    monkeypatch.setattr(outbox, "_CUDA", "cpu")
    monkeypatch.setattr(outbox, "PINNED_BYTES", PINNED)
    monkeypatch.setattr(memory, "_LEAST_BYTES", STAGE)

    def unpinned(size: int, is_emptied: Any, *, is_pinned: bool = False) -> HostMemory:
        assert is_pinned
        return HostMemory(size, is_emptied)

    monkeypatch.setattr(outbox, "HostMemory", unpinned)

    def put(gpu: FakeGpu, tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        monkeypatch.setattr(outbox, "CudaDevice", lambda _: gpu)
        writer = TraceWriter(tmp_path, INFO)
        box = Outbox(writer)
        for number, tensor in enumerate(tensors):
            box.put(record_of(number, tensor), tensor)
            gpu.compute(tensor.zero_)
        assert box.close() == []
        writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
        records = Trace.open(tmp_path).ranks[0].records
        assert [record.sequence for record in records] == list(range(len(tensors)))
        with SpanReader(tmp_path) as spans:
            return [spans.load(record) for record in records]

    return put


def tensors_of(seed: int) -> list[torch.Tensor]:
    """Of many sizes, dtypes and strides; the largest has three times the pinned ring."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for number in range(60):
        size = int(2 ** (torch.rand((), generator=generator).item() * 12.5))
        values = torch.randint(1, 100, (max(size // 4, 1), 4), generator=generator)
        tensor = values.to((torch.float32, torch.bfloat16, torch.int64)[number % 3])
        made.append(tensor.T if number % 4 == 0 else tensor)
    return [*made, torch.ones(3 * PINNED, dtype=torch.uint8), torch.ones(()), torch.ones(0, 3)]


@pytest.mark.parametrize("seed", range(6))
def test_every_value_is_that_of_its_moment(
    seed: int, put_all: Callable[[FakeGpu, list[torch.Tensor]], list[torch.Tensor]]
) -> None:
    tensors = tensors_of(seed)
    expected = [tensor.clone() for tensor in tensors]
    found = put_all(FakeGpu(seed), tensors)
    assert all(map(torch.equal, found, expected))


def test_streams_that_do_not_wait_would_be_seen(
    put_all: Callable[[FakeGpu, list[torch.Tensor]], list[torch.Tensor]],
) -> None:
    tensors = tensors_of(0)
    expected = [tensor.clone() for tensor in tensors]
    found = put_all(FakeGpu(0, waits=False), tensors)
    assert not all(map(torch.equal, found, expected))


@pytest.mark.parametrize(
    ("allocated", "stage"), [(0, 8 << 20), (5 << 30, 48 << 20), (1 << 40, 256 << 20)]
)
def test_the_stage_is_a_hundredth_of_what_the_run_has(allocated: int, stage: int) -> None:
    gpu = FakeGpu(allocated_bytes=allocated)
    memory.Staging(gpu, HostMemory(1 << 10, lambda: True))
    assert gpu.sizes == [stage]


def test_the_stage_grows_with_the_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_LEAST_BYTES", STAGE)
    gpu = FakeGpu()
    host = HostMemory(1 << 20, lambda: True)
    stage = memory.Staging(gpu, host)
    gpu._allocated_bytes = 10 * 100 * STAGE
    for _ in range(70):
        for portion in stage.portions(torch.ones(STAGE, dtype=torch.uint8)):
            assert portion.data()[0] == 1
            portion.free()
    assert gpu.sizes == [STAGE, 10 * STAGE]


@pytest.mark.parametrize("most", [1, 7, 64, 100, 1 << 20])
@pytest.mark.parametrize(
    "tensor",
    [
        torch.arange(210).reshape(5, 6, 7).permute(2, 0, 1),
        torch.arange(210.0).reshape(5, 6, 7)[:, ::2],
        torch.arange(64, dtype=torch.bfloat16),
        torch.tensor(3.0),
        torch.arange(7.0)[::7],
        torch.ones(0, 4),
        torch.arange(12).reshape(3, 4).to(torch.complex64).conj(),
    ],
)
def test_pieces_are_the_tensor_in_its_order(tensor: torch.Tensor, most: int) -> None:
    most = max(most, tensor.element_size())
    made = list(pieces(tensor, most))
    assert all(0 < piece.nbytes <= most for piece in made)
    assert b"".join(map(tensor_bytes, made)) == tensor_bytes(tensor)
