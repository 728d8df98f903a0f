from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import CorruptTrace, UsageError
from ttrace.trace import spans as spans_module
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.payload import tensor_bytes
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter


def write_one(root: Path, tensor: torch.Tensor, *, rank: int = 0, world_size: int = 1) -> Record:
    writer = TraceWriter(root, RankInfo(rank=rank, world_size=world_size))
    record = Record(
        id=TensorId(step=0, module="m", kind=Kind.OUTPUT),
        rank=rank,
        sequence=0,
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
    )
    written = writer.write(record, tensor)
    writer.close(Summary(steps=1, hooks_expected=0, hooks_fired=0))
    return written


def one_record(root: Path, size_bytes: int) -> tuple[Record, bytes]:
    tensor = torch.randint(0, 256, (size_bytes,), dtype=torch.uint8)
    return write_one(root, tensor), bytes(tensor_bytes(tensor))


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def open_files() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


class CountedReads:
    """Bytes that passed through os.preadv, and the largest buffer they went into."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.total = self.largest = 0
        self._real = os.preadv
        monkeypatch.setattr(os, "preadv", self._count)

    def _count(self, fd: int, buffers: list[memoryview], offset: int) -> int:
        size = self._real(fd, buffers, offset)
        self.total += size
        self.largest = max(self.largest, *(buffer.nbytes for buffer in buffers))
        return size


def test_sequential_spans_verify_without_reading_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, data = one_record(tmp_path, 100_000)
    reads = CountedReads(monkeypatch)
    buffer = memoryview(bytearray(30_000))
    with SpanReader(tmp_path) as reader:
        for start in range(0, 100_000, 30_000):
            size = min(30_000, 100_000 - start)
            assert reader.read(record, start, size, buffer) == data[start : start + size]
        reader.finish(record)
        reader.finish(record)
    assert reads.total == 100_000


@pytest.mark.parametrize(
    "starts", [[], [0], [50_000], [0, 50_000], [0, 20_000, 10_000], [0, 10_000, 0]]
)
def test_finish_verifies_all_bytes_whatever_was_read(tmp_path: Path, starts: list[int]) -> None:
    record, data = one_record(tmp_path, 100_000)
    assert record.location is not None
    path = tmp_path / "rank-00000" / record.location.segment

    def read_and_finish() -> None:
        with SpanReader(tmp_path) as reader:
            for start in starts:
                assert reader.read(record, start, 10_000) == data[start : start + 10_000]
            reader.finish(record)

    read_and_finish()
    flip(path, record.location.offset + 99_999)
    with pytest.raises(CorruptTrace):
        read_and_finish()


def test_finish_streams_through_a_small_buffer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = one_record(tmp_path, 5_000_000)
    reads = CountedReads(monkeypatch)
    with SpanReader(tmp_path) as reader:
        reader.finish(record)
    assert reads.total == 5_000_000
    assert reads.largest == 1 << 20


def test_records_that_share_bytes_are_verified_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    record, _ = one_record(tmp_path, 5000)
    reads = CountedReads(monkeypatch)
    with SpanReader(tmp_path) as reader:
        reader.finish(record)
        reader.finish(replace(record, id=replace(record.id, module="other")))
    assert reads.total == 5000


def test_same_place_with_another_checksum_is_not_taken_as_verified(tmp_path: Path) -> None:
    record, _ = one_record(tmp_path, 5000)
    assert record.location is not None
    with SpanReader(tmp_path) as reader:
        reader.finish(record)
        with pytest.raises(CorruptTrace):
            reader.finish(record.at(replace(record.location, xxh3="0" * 16)))


@pytest.mark.parametrize(("start", "size"), [(-1, 5), (0, 101), (100, 1), (5, -1)])
def test_span_outside_of_the_record_is_refused(tmp_path: Path, start: int, size: int) -> None:
    record, _ = one_record(tmp_path, 100)
    with SpanReader(tmp_path) as reader, pytest.raises(UsageError, match="which has 100"):
        reader.read(record, start, size)


def test_buffer_may_have_any_type_and_must_be_large_enough(tmp_path: Path) -> None:
    record, data = one_record(tmp_path, 96)
    floats = torch.empty(4, 6, dtype=torch.float32).numpy()
    with SpanReader(tmp_path) as reader:
        assert reader.read(record, 0, 96, floats.data) == data
        assert floats.tobytes() == data
        with pytest.raises(UsageError, match="a buffer of 4 bytes cannot take 5"):
            reader.read(record, 0, 5, memoryview(bytearray(4)))


def test_reader_keeps_few_files_open_and_closes_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans_module, "most_open_files", lambda: 3)
    tensor = torch.arange(4)
    for rank in range(6):
        write_one(tmp_path, tensor + rank, rank=rank, world_size=6)
    trace = Trace.open(tmp_path)
    before = open_files()
    with SpanReader(tmp_path) as reader:
        for _ in range(2):
            for rank in range(6):
                assert torch.equal(reader.load(trace.ranks[rank].records[0]), tensor + rank)
            assert open_files() == before + 3
    assert open_files() == before
