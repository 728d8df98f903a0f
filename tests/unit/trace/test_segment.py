from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file

from ttrace.core.record import Location
from ttrace.errors import UsageError
from ttrace.trace.dtypes import dtype_name, safetensors_name
from ttrace.trace.payload import tensor_bytes
from ttrace.trace.segment import ALIGNMENT, SegmentWriter

SMALL_HEADER = 1 << 14
BYTES_ONLY = (torch.complex64, torch.complex128, torch.float8_e4m3fnuz, torch.float8_e8m0fnu)
DTYPES = tuple(
    dtype
    for dtype in {value for value in vars(torch).values() if isinstance(value, torch.dtype)}
    if safetensors_name(dtype_name(dtype))
)
SHAPES = ((), (0,), (3, 0, 2), (1,), (5, 7), (2, 3, 4))


def random_bits(shape: Sequence[int], dtype: torch.dtype) -> torch.Tensor:
    """Any bit pattern, NaNs included; bool has only two legal ones."""
    if dtype == torch.bool:
        return torch.randint(0, 2, tuple(shape)).bool()
    count = torch.Size(shape).numel() * dtype.itemsize
    return torch.randint(0, 256, (count,), dtype=torch.uint8).view(dtype).reshape(tuple(shape))


def append(segments: SegmentWriter, tensor: torch.Tensor, name: str) -> Location:
    return segments.append(
        tensor_bytes(tensor),
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        name=name,
    )


def same_bits(left: torch.Tensor, right: torch.Tensor) -> bool:
    return left.dtype == right.dtype and bytes(tensor_bytes(left)) == bytes(tensor_bytes(right))


def names_in(path: Path) -> list[str]:
    with safe_open(path, "pt") as file:
        return [name for name in file.keys() if not name.startswith("__pad")]  # noqa: SIM118


@pytest.mark.parametrize("dtype", sorted(DTYPES, key=str), ids=str)
def test_sealed_segment_opens_as_safetensors_with_the_same_bits(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    tensors = {f"{shape}": random_bits(shape, dtype) for shape in SHAPES}
    segments = SegmentWriter(tmp_path)
    for name, tensor in tensors.items():
        append(segments, tensor, name)
    segments.seal()
    loaded = load_file(tmp_path / "seg-00000.safetensors")
    for name, tensor in tensors.items():
        assert loaded[name].shape == tensor.shape
        assert same_bits(loaded[name], tensor), name


@pytest.mark.parametrize("dtype", BYTES_ONLY, ids=str)
def test_dtype_that_safetensors_cannot_name_is_stored_as_bytes(
    tmp_path: Path, dtype: torch.dtype
) -> None:
    tensor = random_bits((3, 5), dtype)
    segments = SegmentWriter(tmp_path)
    append(segments, tensor, "x")
    segments.seal()
    stored = load_file(tmp_path / "seg-00000.safetensors")["x"]
    assert stored.dtype == torch.uint8
    assert same_bits(stored.view(dtype).reshape(3, 5), tensor)


def test_location_has_offset_size_and_checksum_of_the_bytes(tmp_path: Path) -> None:
    segments = SegmentWriter(tmp_path)
    append(segments, random_bits((13,), torch.uint8), "odd size")
    tensor = random_bits((3, 700_001), torch.bfloat16)  # several chunks of the writer
    location = append(segments, tensor, "x")
    content = (tmp_path / location.segment).read_bytes()
    data = content[location.offset : location.offset + location.size_bytes]
    assert location.offset % ALIGNMENT == 0
    assert data == bytes(tensor_bytes(tensor))
    assert location.xxh3 == xxhash.xxh3_64_hexdigest(data)


def test_segment_is_no_safetensors_file_before_it_is_sealed(tmp_path: Path) -> None:
    segments = SegmentWriter(tmp_path)
    append(segments, torch.ones(4), "x")
    with pytest.raises(SafetensorError):
        load_file(tmp_path / "seg-00000.safetensors")
    segments.seal()
    assert load_file(tmp_path / "seg-00000.safetensors")["x"].tolist() == [1.0] * 4


def test_zero_size_tensor_at_the_end_leaves_a_valid_segment(tmp_path: Path) -> None:
    segments = SegmentWriter(tmp_path)
    append(segments, random_bits((13,), torch.uint8), "odd size")
    last = append(segments, torch.empty(0, 4), "nothing")
    assert last.offset <= (tmp_path / last.segment).stat().st_size
    segments.seal()
    assert load_file(tmp_path / "seg-00000.safetensors")["nothing"].shape == (0, 4)


def test_same_name_twice_gets_a_name_of_its_own(tmp_path: Path) -> None:
    segments = SegmentWriter(tmp_path)
    for name in ("x", "x~2", "x", "x"):
        append(segments, torch.ones(2), name)
    segments.seal()
    assert len(set(names_in(tmp_path / "seg-00000.safetensors"))) == 4


def test_segment_rolls_when_its_bytes_are_full(tmp_path: Path) -> None:
    segments = SegmentWriter(tmp_path, max_bytes=SMALL_HEADER + 4096, header_bytes=SMALL_HEADER)
    places = [append(segments, random_bits((1000,), torch.uint8), f"{i}") for i in range(9)]
    segments.seal()
    assert [place.segment[4:9] for place in places] == [f"{i // 4:05d}" for i in range(9)]
    files = sorted(tmp_path.iterdir())
    assert [len(names_in(file)) for file in files] == [4, 4, 1]


def test_tensor_larger_than_a_segment_gets_one_of_its_own(tmp_path: Path) -> None:
    segments = SegmentWriter(tmp_path, max_bytes=SMALL_HEADER + 4096, header_bytes=SMALL_HEADER)
    sizes = (10, 100_000, 10)
    places = [
        append(segments, random_bits((n,), torch.uint8), f"{n}-{i}") for i, n in enumerate(sizes)
    ]
    segments.seal()
    assert len({place.segment for place in places}) == 3
    assert all(len(names_in(file)) == 1 for file in tmp_path.iterdir())


def test_segment_rolls_when_its_header_is_full_even_with_the_longest_names(tmp_path: Path) -> None:
    segments = SegmentWriter(tmp_path, header_bytes=SMALL_HEADER)
    longest = "\N{SNAKE}" * 600
    for _ in range(5):
        append(segments, torch.ones([1] * 60 + [3], dtype=torch.uint8), longest)
    segments.seal()
    files = sorted(tmp_path.iterdir())
    assert len(files) > 1
    assert sum(len(names_in(file)) for file in files) == 5


def test_segment_without_tensors_is_never_made(tmp_path: Path) -> None:
    SegmentWriter(tmp_path).seal()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("header_bytes", [64, SMALL_HEADER + 1])
def test_header_too_small_or_unaligned_is_refused(tmp_path: Path, header_bytes: int) -> None:
    with pytest.raises(UsageError, match=f"found {header_bytes}"):
        SegmentWriter(tmp_path, header_bytes=header_bytes)


def test_short_writes_are_continued(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = os.pwrite
    monkeypatch.setattr(os, "pwrite", lambda fd, data, at: whole(fd, data[:1000], at))
    tensor = random_bits((5001,), torch.int16)
    segments = SegmentWriter(tmp_path)
    append(segments, tensor, "x")
    monkeypatch.undo()
    segments.seal()
    assert same_bits(load_file(tmp_path / "seg-00000.safetensors")["x"], tensor)


def test_failed_write_leaves_no_trace_of_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segments = SegmentWriter(tmp_path)
    first, last = random_bits((77,), torch.uint8), random_bits((99,), torch.uint8)
    append(segments, first, "first")
    size_before = (tmp_path / "seg-00000.safetensors").stat().st_size

    whole, calls = os.pwrite, iter(range(9))

    def half_then_full(fd: int, data: memoryview, at: int) -> int:
        if next(calls) == 0:
            return whole(fd, data[: data.nbytes // 2], at)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "pwrite", half_then_full)
    with pytest.raises(OSError, match="No space left"):
        append(segments, random_bits((5000,), torch.uint8), "lost")
    monkeypatch.undo()

    assert (tmp_path / "seg-00000.safetensors").stat().st_size == size_before
    append(segments, last, "last")
    segments.seal()
    loaded = load_file(tmp_path / "seg-00000.safetensors")
    assert same_bits(loaded["first"], first)
    assert same_bits(loaded["last"], last)
    assert "lost" not in loaded


def test_segment_that_cannot_be_started_is_started_by_the_next_tensor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    segments = SegmentWriter(tmp_path)
    monkeypatch.setattr(os, "pwrite", full)
    with pytest.raises(OSError, match="No space left"):
        append(segments, torch.ones(2), "x")
    assert list(tmp_path.iterdir()) == []
    monkeypatch.undo()
    assert append(segments, torch.ones(2), "x").segment == "seg-00000.safetensors"
    segments.seal()
    assert names_in(tmp_path / "seg-00000.safetensors") == ["x"]


# Files are made here: a slow disk is no failure.
@settings(deadline=None, max_examples=50, suppress_health_check=[HealthCheck.too_slow])
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=40),
    room=st.integers(0, 20_000),
    names=st.lists(
        st.text(alphabet=st.characters(exclude_categories=["Cs"]), max_size=20), min_size=1
    ),
)
def test_any_sequence_of_sizes_and_names_makes_valid_segments(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int], room: int, names: list[str]
) -> None:
    folder = tmp_path_factory.mktemp("segments")
    segments = SegmentWriter(folder, max_bytes=SMALL_HEADER + room, header_bytes=SMALL_HEADER)
    tensors = [random_bits((size,), torch.uint8) for size in sizes]
    for index, tensor in enumerate(tensors):
        append(segments, tensor, "x" + names[index % len(names)])
    segments.seal()
    stored = [
        bytes(tensor_bytes(tensor))
        for file in folder.iterdir()
        for name, tensor in load_file(file).items()
        if not name.startswith("__pad")
    ]
    assert sorted(stored) == sorted(bytes(tensor_bytes(tensor)) for tensor in tensors)
