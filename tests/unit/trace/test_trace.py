from __future__ import annotations

import itertools
import json
import os
import resource
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

from attacks.forging import Forged
from ttrace.core.door import Refused, from_dict, parse_json
from ttrace.core.ids import Kind, TensorId
from ttrace.core.layout import Layout
from ttrace.core.limits import JOURNALS_BYTES, LINE_BYTES
from ttrace.core.record import ModuleInfo, RankInfo, Record, Summary
from ttrace.errors import CorruptTrace, TraceError, TraceNotFound, UnsupportedTrace, UsageError
from ttrace.trace import journal, writer
from ttrace.trace.dtypes import dtype_name
from ttrace.trace.payload import tensor_bytes
from ttrace.trace.reader import RecordLines, Trace
from ttrace.trace.segment import HEADER_BYTES
from ttrace.trace.spans import SpanReader
from ttrace.trace.writer import TraceWriter

SUMMARY = Summary(steps=1, hooks_expected=3, hooks_fired=2, unfired=("step0/a:grad_input.0",))
DTYPES = (
    torch.bool,
    torch.int64,
    torch.float8_e4m3fn,
    torch.float8_e5m2,
    torch.float8_e8m0fnu,
    torch.bfloat16,
    torch.float16,
    torch.float32,
    torch.float64,
    torch.complex64,
)


def record_of(tensor: torch.Tensor, module: str = "a", *, step: int = 0, **more: Any) -> Record:
    return Record(
        id=TensorId(step=step, module=module, kind=Kind.OUTPUT, slot="0"),
        rank=more.pop("rank", 0),
        sequence=more.pop("sequence", 0),
        dtype=dtype_name(tensor.dtype),
        shape=tuple(tensor.shape),
        **more,
    )


def write_trace(root: Path, *tensors: torch.Tensor, rank: int = 0, world_size: int = 1) -> Trace:
    writer = TraceWriter(root, RankInfo(rank=rank, world_size=world_size))
    for index, tensor in enumerate(tensors):
        writer.write(record_of(tensor, f"m{index}", rank=rank, sequence=index), tensor)
    writer.close(SUMMARY)
    return Trace.open(root)


def load_all(trace: Trace) -> list[torch.Tensor]:
    with SpanReader(trace.path) as reader:
        return [reader.load(record) for rank in trace.ranks.values() for record in rank.records]


def flip(path: Path, offset: int) -> None:
    data = bytearray(path.read_bytes())
    data[offset] ^= 1
    path.write_bytes(data)


def edit_manifest(root: Path, **changes: Any) -> None:
    forged = Forged(root / "rank-00000")
    forged.manifest |= changes
    forged.write()


def edit_journal(root: Path, change: Callable[[dict[str, Any]], object]) -> None:
    """A change of the first record by someone who also makes the checksum fit."""
    forged = Forged(root / "rank-00000")
    change(forged.records[0])
    forged.write()


# Writing and reading back


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_comes_back_with_the_same_bits(tmp_path: Path, dtype: torch.dtype) -> None:
    tensors = [
        torch.randn(shape, dtype=torch.float32).to(dtype)
        for shape in ((), (0,), (2, 0, 3), (1,), (5, 7))
    ]
    for written, read in zip(tensors, load_all(write_trace(tmp_path, *tensors)), strict=True):
        assert read.dtype == written.dtype
        assert read.shape == written.shape
        assert bytes(tensor_bytes(read)) == bytes(tensor_bytes(written))


@pytest.mark.parametrize(
    "view",
    [
        torch.randn(6, 8).t(),
        torch.randn(6, 8)[:, ::2],
        torch.randn(1, 8).expand(6, 8),
        torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
        torch.randn(4, 4, dtype=torch.complex64).conj(),
        torch.randn(4, 4, dtype=torch.complex64).conj().imag,
        torch.randn(4, 4, requires_grad=True),
    ],
    ids=["transposed", "strided", "expanded", "channels_last", "conj", "neg", "requires_grad"],
)
def test_views_are_written_as_the_values_they_show(tmp_path: Path, view: torch.Tensor) -> None:
    (read,) = load_all(write_trace(tmp_path, view))
    assert torch.equal(read, view)


def test_bytes_of_a_contiguous_tensor_are_not_copied() -> None:
    tensor = torch.zeros(4, 4, dtype=torch.bfloat16)
    data = tensor_bytes(tensor)
    tensor.fill_(1)
    assert torch.frombuffer(data, dtype=torch.bfloat16).eq(1).all()


def test_what_a_rank_says_of_itself_comes_back(tmp_path: Path) -> None:
    info = RankInfo(
        rank=3,
        world_size=8,
        axes={"tp": (1, 2)},
        batch=(0, 4),
        noise_seed=7,
        modules=(ModuleInfo(path="a", class_name="Linear", source="model.py:3"),),
        versions={"torch": "2"},
        facts={"torch seed": "0"},
    )
    TraceWriter(tmp_path, info).close(SUMMARY)
    trace = Trace.open(tmp_path)
    assert trace.ranks[3].info == info
    assert trace.ranks[3].summary == SUMMARY
    assert trace.ranks[3].records == ()
    assert trace.missing_ranks == (0, 1, 2, 4, 5, 6, 7)


def test_records_come_back_as_written_with_their_location(tmp_path: Path) -> None:
    tensor = torch.randn(4, 4)
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    written = writer.write(
        record_of(
            tensor,
            "läyer\n:0",
            microbatch=2,
            recompute=True,
            layout=Layout.full((4, 8)).shard(1, 1, 2).summed_over("tp"),
        ),
        tensor,
    )
    writer.close(SUMMARY)
    assert written.location is not None
    assert Trace.open(tmp_path).ranks[0].records == (written,)


def test_note_shares_the_bytes_of_another_record_or_has_none(tmp_path: Path) -> None:
    tensor = torch.randn(3)
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    first = writer.write(record_of(tensor, "a"), tensor)
    assert first.location is not None
    writer.note(record_of(tensor, "b", same_as=first.id).at(first.location))
    gradient = TensorId.parse("step0/c:grad_output.0")
    writer.note(replace(record_of(tensor, "c", same_as=first.id), id=gradient))
    writer.close(SUMMARY)
    _, shared, empty = Trace.open(tmp_path).ranks[0].records
    with SpanReader(tmp_path) as reader:
        assert torch.equal(reader.load(shared), tensor)
        with pytest.raises(
            UsageError, match=r"step0/c:grad_output.0 of rank 0 has no bytes.*step0/a:"
        ):
            reader.load(empty)


def test_closed_trace_has_segments_that_safetensors_opens(tmp_path: Path) -> None:
    tensor = torch.randn(3, 5).bfloat16()
    write_trace(tmp_path, tensor)
    loaded = load_file(tmp_path / "rank-00000" / "seg-00000.safetensors")
    assert torch.equal(loaded["step0/m0:output.0@mb0"], tensor)


def test_index_and_steps_span_all_ranks(tmp_path: Path) -> None:
    tensor = torch.ones(2)
    for rank in (2, 0):
        writer = TraceWriter(tmp_path, RankInfo(rank=rank, world_size=3))
        for step in (4, 1):
            writer.write(record_of(tensor, rank=rank, step=step), tensor)
        writer.close(SUMMARY)
    trace = Trace.open(tmp_path)
    assert trace.steps == (1, 4)
    assert trace.world_size == 3
    assert trace.missing_ranks == (1,)
    by_id = trace.by_id()
    assert [[record.rank for record in records] for records in by_id.values()] == [[0, 2], [0, 2]]
    assert trace.by_id() is by_id


def test_existing_rank_folder_is_refused_and_left_alone(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    writer._CLAIMED.clear()
    files = sorted((file.name, file.read_bytes()) for file in (tmp_path / "rank-00000").iterdir())
    with pytest.raises(UsageError, match=r"rank-00000 already holds files.*two of its processes"):
        TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    after = sorted((file.name, file.read_bytes()) for file in (tmp_path / "rank-00000").iterdir())
    assert after == files


def test_empty_rank_folder_is_used(tmp_path: Path) -> None:
    (tmp_path / "rank-00000").mkdir()
    assert len(write_trace(tmp_path, torch.ones(2)).ranks[0].records) == 1


def test_closed_writer_refuses_more(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    writer.close(SUMMARY)
    with pytest.raises(UsageError, match="is closed"):
        writer.write(record_of(torch.ones(2)), torch.ones(2))
    with pytest.raises(UsageError, match="is closed"):
        writer.note(record_of(torch.ones(2)))
    with pytest.raises(UsageError, match="is closed"):
        writer.close(SUMMARY)
    assert Trace.open(tmp_path).ranks[0].records == ()


def test_record_that_does_not_describe_its_tensor_is_refused(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    with pytest.raises(UsageError, match=r"says float32 \(2,\), its tensor is bfloat16 \(2,\)"):
        writer.write(record_of(torch.ones(2)), torch.ones(2).bfloat16())
    writer.close(SUMMARY)


def test_threads_may_write_at_the_same_time(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))

    def work(number: int) -> None:
        for index in range(50):
            tensor = torch.full((number * 100 + index,), number)
            writer.write(record_of(tensor, f"t{number}.{index}"), tensor)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.close(SUMMARY)
    tensors = load_all(Trace.open(tmp_path))
    assert len(tensors) == 200
    assert all((tensor == tensor[:1]).all() for tensor in tensors)


# Killed and starved runs

WRITE_UNTIL_KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from ttrace.core.ids import Kind, TensorId
from ttrace.core.record import RankInfo, Record
from ttrace.trace.writer import TraceWriter

def write_for_ever(root):
    writer = TraceWriter(root, RankInfo(rank=0, world_size=1))
    done = os.open(root / "done", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for index in range(10**9):
        tensor = torch.full(((index % 7) * 100_000 + 1,), index, dtype=torch.int32)
        id = TensorId(step=0, module=f"m{index}", kind=Kind.OUTPUT)
        record = Record(id=id, rank=0, sequence=index, dtype="int32", shape=tuple(tensor.shape))
        writer.write(record, tensor)
        os.write(done, b".")

for folder, delay in zip(sys.argv[1::2], sys.argv[2::2]):
    root = Path(folder)
    root.mkdir()
    child = os.fork()
    if child == 0:
        write_for_ever(root)
    while not (root / "done").exists():
        time.sleep(0.001)
    time.sleep(float(delay))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""


@pytest.mark.flow
def test_killed_run_loses_at_most_the_record_being_written(tmp_path: Path) -> None:
    delays = {tmp_path / f"run{i}": delay for i, delay in enumerate((0, 0.007, 0.02, 0.05, 0.11))}
    arguments = [str(part) for item in delays.items() for part in item]
    source = str(Path(journal.__file__).parents[2])
    subprocess.run(
        [sys.executable, "-c", WRITE_UNTIL_KILLED, *arguments],
        check=True,
        env={**os.environ, "PYTHONPATH": source, "OMP_NUM_THREADS": "1"},
        timeout=60,
    )
    for root in delays:
        done = (root / "done").stat().st_size
        trace = Trace.open(root)
        tensors = load_all(trace)
        assert trace.ranks[0].summary is None
        assert len(tensors) in (done, done + 1), root
        for index, tensor in enumerate(tensors):
            assert tensor.shape == ((index % 7) * 100_000 + 1,)
            assert (tensor == index).all()
    assert (tmp_path / "run4" / "done").stat().st_size > 10


def test_torn_last_journal_line_is_noted_and_ignored(tmp_path: Path) -> None:
    whole = write_trace(tmp_path, torch.ones(2), torch.ones(3))
    assert whole.ranks[0].notes == ()
    path = tmp_path / "rank-00000" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    for kept in range(len(lines[1])):
        path.write_bytes(lines[0] + lines[1][:kept])
        rank = Trace.open(tmp_path).ranks[0]
        assert rank.records == whole.ranks[0].records[:1]
        assert rank.summary is None
        torn = ("the last journal line was torn and is ignored",)
        assert rank.notes == (torn if kept else ())


@contextmanager
def largest_file(size_bytes: int) -> Iterator[None]:
    """Writes beyond this size fail, as on a full disk (Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_full_disk_keeps_the_records_before_it_and_those_after_it(tmp_path: Path) -> None:
    tensors = [torch.full((5000,), i, dtype=torch.int64) for i in range(5)]
    small = torch.ones(7)
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    with largest_file(HEADER_BYTES + 100_000):
        for index in (0, 1):
            writer.write(record_of(tensors[index], f"m{index}"), tensors[index])
        with pytest.raises(OSError, match="File too large"):
            writer.write(record_of(tensors[2], "m2"), tensors[2])
        writer.write(record_of(small, "small"), small)
        writer.close(SUMMARY)
    trace = Trace.open(tmp_path)
    for read, written in zip(load_all(trace), [*tensors[:2], small], strict=True):
        assert torch.equal(read, written)
    assert trace.ranks[0].summary == SUMMARY
    sealed = load_file(tmp_path / "rank-00000" / "seg-00000.safetensors")
    assert torch.equal(sealed["step0/small:output.0@mb0"], small)


def test_journal_line_that_does_not_fit_on_the_disk_is_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = os.write
    tensor = torch.ones(3)
    writer = TraceWriter(tmp_path, RankInfo(rank=0, world_size=1))
    writer.write(record_of(tensor, "before"), tensor)
    monkeypatch.setattr(os, "write", lambda fd, data: whole(fd, data[: len(data) // 2]))
    with pytest.raises(OSError, match="No space left"):
        writer.write(record_of(tensor, "lost"), tensor)
    monkeypatch.undo()
    writer.write(record_of(tensor, "after"), tensor)
    writer.close(SUMMARY)
    trace = Trace.open(tmp_path)
    assert [record.id.module for record in trace.ranks[0].records] == ["before", "after"]
    assert trace.ranks[0].notes == ()


# Damaged, foreign and hostile traces


def test_missing_folder_is_not_found(tmp_path: Path) -> None:
    with pytest.raises(TraceNotFound, match=r"nowhere is missing.*`ttrace run`"):
        Trace.open(tmp_path / "nowhere")


def test_file_instead_of_a_folder_is_not_found(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TraceNotFound, match="is a file"):
        Trace.open(tmp_path / "file")


def test_folder_without_ranks_is_not_found_and_told_what_it_should_hold(tmp_path: Path) -> None:
    (tmp_path / "rank-x").mkdir()
    (tmp_path / "rank-000000").mkdir()
    with pytest.raises(TraceNotFound, match=r"rank-00000 and on.*manifest.json.*`ttrace run`"):
        Trace.open(tmp_path)


@pytest.mark.parametrize(
    ("version", "todo"),
    [
        (4, "upgrade ttrace"),
        (2, "trace the run again with this ttrace"),
        (1, "trace the run again with this ttrace"),
        ("3", "trace the run again with this ttrace"),
    ],
)
def test_other_version_is_refused_with_both_versions(
    tmp_path: Path, version: Any, todo: str
) -> None:
    write_trace(tmp_path, torch.ones(2))
    edit_manifest(tmp_path, version=version)
    with pytest.raises(UnsupportedTrace, match=rf"version {version!r} .*reads version 3: {todo}"):
        Trace.open(tmp_path)


def test_version_without_a_seal_is_refused_by_its_number(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    text = json.dumps({"format": "ttrace", "version": 1, "rank": 0, "world_size": 1})
    (tmp_path / "rank-00000" / "manifest.json").write_text(text)
    with pytest.raises(UnsupportedTrace, match="has version 1 of the trace format"):
        Trace.open(tmp_path)


def test_foreign_format_is_refused(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    edit_manifest(tmp_path, format="other")
    with pytest.raises(UnsupportedTrace, match="'other', expected 'ttrace'"):
        Trace.open(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff\xfe", b"[]", b'{"format": "ttrace", "version": 3}', b"[" * 99999]
)
def test_damaged_manifest_is_named(tmp_path: Path, content: bytes) -> None:
    write_trace(tmp_path, torch.ones(2))
    (tmp_path / "rank-00000" / "manifest.json").write_bytes(content)
    with pytest.raises(CorruptTrace, match=r"manifest.json is not the manifest of rank 0"):
        Trace.open(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        *({"rank": 1}, {"world_size": 0}, {"world_size": 10**12}, {"world_size": 1.5}),
        *({"axes": {"tp": [2, 2]}}, {"batch": [1, 0]}, {"loss_parts": 0}, {"perturbed": "7"}),
    ],
)
def test_manifest_with_an_impossible_rank_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    write_trace(tmp_path, torch.ones(2))
    edit_manifest(tmp_path, **changes)
    with pytest.raises(CorruptTrace, match=r"not the manifest of rank 0: .*found .*, expected"):
        Trace.open(tmp_path)


def test_missing_manifest_is_named(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    (tmp_path / "rank-00000" / "manifest.json").unlink()
    with pytest.raises(CorruptTrace, match=r"manifest.json is missing"):
        Trace.open(tmp_path)


def test_ranks_of_different_world_sizes_are_refused(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2), rank=0, world_size=2)
    with pytest.raises(CorruptTrace, match=r"world sizes are {0: 2, 1: 4}"):
        write_trace(tmp_path, torch.ones(2), rank=1, world_size=4)


def test_every_flipped_bit_in_the_journal_is_found(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    path = tmp_path / "rank-00000" / "journal.jsonl"
    content = path.read_bytes()
    for offset in range(content.index(b"\n")):
        flip(path, offset)
        with pytest.raises(
            CorruptTrace, match=r"journal.jsonl:1: the journal of rank 0 is damaged"
        ):
            Trace.open(tmp_path)
        path.write_bytes(content)
    Trace.open(tmp_path)


def test_every_flipped_bit_in_the_manifest_is_found(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    path = tmp_path / "rank-00000" / "manifest.json"
    content = path.read_bytes()
    for offset, bit in itertools.product(range(len(content)), range(8)):
        path.write_bytes(
            content[:offset] + bytes([content[offset] ^ 1 << bit]) + content[offset + 1 :]
        )
        with pytest.raises(TraceError):
            Trace.open(tmp_path)
    path.write_bytes(content)
    Trace.open(tmp_path)


@pytest.mark.parametrize("change", ["lost", "doubled", "exchanged"])
@pytest.mark.parametrize("place", range(3))
def test_lines_that_are_lost_doubled_or_exchanged_are_noticed(
    tmp_path: Path, change: str, place: int
) -> None:
    write_trace(tmp_path, torch.ones(2), torch.ones(3), torch.ones(4))
    path = tmp_path / "rank-00000" / "journal.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    here = lines[place]
    other = {"lost": [], "doubled": [here, here], "exchanged": [lines[place + 1], here]}[change]
    behind = place + (2 if change == "exchanged" else 1)
    path.write_bytes(b"".join([*lines[:place], *other, *lines[behind:]]))
    with pytest.raises(CorruptTrace, match="lines before it were lost, doubled or exchanged"):
        Trace.open(tmp_path)


def test_count_at_the_end_must_be_that_of_the_records(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2), torch.ones(3))
    forged = Forged(tmp_path / "rank-00000")
    del forged.lines[0]
    forged.write()
    with pytest.raises(CorruptTrace, match="records: found 1 before this line, expected 2"):
        Trace.open(tmp_path)


def test_line_without_an_end_is_refused_before_it_fills_memory(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    path = tmp_path / "rank-00000" / "journal.jsonl"
    os.truncate(path, LINE_BYTES + (1 << 20))
    with pytest.raises(CorruptTrace, match="found more than 16,777,216 bytes"):
        Trace.open(tmp_path)
    os.truncate(path, JOURNALS_BYTES + 1)
    with pytest.raises(UnsupportedTrace, match="record fewer steps"):
        Trace.open(tmp_path)


def test_lines_after_the_end_of_a_rank_are_refused(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    forged = Forged(tmp_path / "rank-00000")
    forged.lines.append(forged.lines[0])
    forged.write()
    with pytest.raises(CorruptTrace, match="expected nothing after the end of a rank"):
        Trace.open(tmp_path)


def test_flipped_byte_of_a_tensor_is_found_and_named(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, torch.zeros(500), torch.zeros(700))
    good, bad = trace.ranks[0].records
    assert bad.location is not None
    path = tmp_path / "rank-00000" / bad.location.segment
    for offset in (0, 1234, bad.location.size_bytes - 1):
        flip(path, bad.location.offset + offset)
        with SpanReader(tmp_path) as reader:
            reader.load(good)
            with pytest.raises(CorruptTrace) as caught:
                reader.load(bad)
        for part in (str(bad.id), "rank 0", str(path), f"offset {bad.location.offset}"):
            assert part in str(caught.value)
        flip(path, bad.location.offset + offset)
    assert len(load_all(trace)) == 2


def test_missing_segment_is_named_with_the_record_that_needs_it(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    (tmp_path / "rank-00000" / "seg-00000.safetensors").unlink()
    with pytest.raises(
        CorruptTrace, match=r"seg-00000.safetensors is missing.*m0:output.0 of rank 0"
    ):
        Trace.open(tmp_path)


def test_truncated_segment_is_named_with_the_record_that_needs_it(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(64), torch.ones(64))
    path = tmp_path / "rank-00000" / "seg-00000.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(CorruptTrace, match=r"seg-00000.safetensors ends.*m1:output.0 of rank 0"):
        Trace.open(tmp_path)


def test_segment_truncated_after_opening_is_found_when_read(tmp_path: Path) -> None:
    trace = write_trace(tmp_path, torch.ones(64))
    path = tmp_path / "rank-00000" / "seg-00000.safetensors"
    os.truncate(path, path.stat().st_size - 1)
    with pytest.raises(
        CorruptTrace, match=r"ends at byte \d+, before the end of step0/m0:output.0"
    ):
        load_all(trace)


@pytest.mark.parametrize(
    "segment",
    [
        "../seg-00000.safetensors",
        "/etc/passwd",
        "..",
        "",
        "a/seg-00000.safetensors",
        "manifest.json",
    ],
)
def test_journal_that_names_another_file_is_refused(tmp_path: Path, segment: str) -> None:
    root = tmp_path / "trace"
    trace = write_trace(root, torch.ones(2))
    (root / "seg-00000.safetensors").write_bytes(b"x" * HEADER_BYTES * 2)
    edit_journal(root, lambda value: value["at"].__setitem__(0, segment))
    with pytest.raises(CorruptTrace, match=r"at.segment: found .* expected text like seg-"):
        Trace.open(root)
    record = trace.ranks[0].records[0]
    assert record.location is not None
    forged = record.at(replace(record.location, segment=segment))
    with SpanReader(root) as reader, pytest.raises(CorruptTrace, match="do not trust"):
        reader.load(forged)


@pytest.mark.parametrize("name", ["seg-00000.safetensors", "journal.jsonl", "manifest.json"])
def test_link_out_of_the_trace_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / "trace"
    write_trace(root, torch.ones(2))
    path = root / "rank-00000" / name
    path.rename(tmp_path / name)
    path.symlink_to(tmp_path / name)
    with pytest.raises(CorruptTrace, match=f"{name} leads out of the trace"):
        Trace.open(root)


def test_trace_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    write_trace(tmp_path / "trace", torch.ones(2))
    (tmp_path / "link").symlink_to(tmp_path / "trace")
    assert load_all(Trace.open(tmp_path / "link"))[0].tolist() == [1, 1]


def test_pipe_instead_of_a_segment_is_refused_and_not_waited_for(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    path = tmp_path / "rank-00000" / "seg-00000.safetensors"
    path.unlink()
    os.mkfifo(path)
    with pytest.raises(CorruptTrace, match="is not a regular file"):
        Trace.open(tmp_path)


@pytest.mark.parametrize(
    ("field", "wrong"),
    [
        ("at", ["seg-00000.safetensors", -64, 8, "00"]),
        ("at", ["seg-00000.safetensors", 1.5, 8, "00"]),
        ("at", ["seg-00000.safetensors", 0, 9, "00"]),
        ("at", [["seg-00000.safetensors"], 0, 8, "00"]),
        ("at", []),
        ("at", 7),
        ("shape", [-1, -2]),
        ("shape", [True, 2]),
        ("shape", 2),
        ("dtype", "float99"),
        ("dtype", "nn"),
        ("dtype", 5),
        ("id", "no id"),
        ("mb", None),
        ("mb", 1 << 40),
        ("at", ["seg-00000.safetensors", 0, 8, "not a digest"]),
        ("dtype", "qint8"),
        ("dtype", "float4_e2m1fn_x2"),
        ("shape", [1] * 64),
        ("shape", [1 << 30, 1 << 30, 0]),
        ("batch_dim", 1),
        ("batch_dim", -2),
        ("origin", 1),
        ("recompute", 1),
        ("same_as", "step0/later:output.0"),
        ("layout", {"shape": [4], "runs": [[[0, 3]]], "partial": []}),
        ("layout", {"shape": [4], "runs": [[[0, 1], [0, 1]]], "partial": []}),
        ("layout", {"shape": [4], "runs": [[["0", 2]]], "partial": []}),
        ("layout", {"shape": [4], "runs": [[[3, 2]]], "partial": []}),
        ("layout", {"shape": [2], "runs": [], "partial": []}),
    ],
)
def test_record_that_cannot_be_is_refused(tmp_path: Path, field: str, wrong: object) -> None:
    write_trace(tmp_path, torch.ones(2))
    edit_journal(tmp_path, lambda value: value.__setitem__(field, wrong))
    with pytest.raises(CorruptTrace, match=r"journal.jsonl:1: the journal of rank 0 is damaged"):
        Trace.open(tmp_path)


def test_record_without_a_field_is_refused_with_the_field(tmp_path: Path) -> None:
    write_trace(tmp_path, torch.ones(2))
    edit_journal(tmp_path, lambda value: value.pop("shape"))
    with pytest.raises(CorruptTrace, match="shape: found nothing, expected a value"):
        Trace.open(tmp_path)


def read(lines: RecordLines, text: bytes, info: RankInfo, earlier: Sequence[TensorId]) -> Record:
    lines.add(text, info, earlier)
    return lines.table.last()


def test_what_looks_like_a_place_inside_of_other_data_is_none() -> None:
    """Lines that are alike but for a place are parsed once: it must be that of the record."""
    place = b',"at":["seg-00000.safetensors",%d,4,"0123456789abcdef"]'
    head = b'{"id":"step0/:input.0","seq":0,"dtype":"float32","shape":[1],"mb":0'
    info = RankInfo(rank=0, world_size=1)
    lines = RecordLines()
    for offset in (0, 64):
        found = read(lines, head + place % offset + b"}", info, ())
        assert found.location is not None
        assert found.location.offset == offset
        with pytest.raises(Refused, match="nothing"):  # the record itself has no bytes
            read(lines, head + b',"more":{"a":1' + place % offset + b"}}", info, ())


def test_a_line_like_another_is_refused_where_its_own_bytes_do_not_fit() -> None:
    head = b'{"id":"step0/:input.0","seq":0,"dtype":"float32","shape":[1],"mb":0'
    place = b',"at":["seg-00000.safetensors",0,%d,"0123456789abcdef"]}'
    lines, info = RecordLines(), RankInfo(rank=0, world_size=1)
    read(lines, head + place % 4, info, ())
    with pytest.raises(Refused, match="4 bytes for float32"):
        read(lines, head + place % 8, info, ())


LIKE = (
    b'{"id":"step0/layers.%d:input.0","seq":%d,"dtype":"float32","shape":[1],"mb":0,'
    b'"same_as":"step0/layers.%d:input.0","at":["seg-00000.safetensors",0,4,"0123456789abcdef"]'
)


def test_lines_that_differ_in_names_are_read_as_each_by_itself() -> None:
    lines, info = RecordLines(), RankInfo(rank=0, world_size=1)
    earlier = [TensorId.parse(f"step0/layers.{number}:input.0") for number in range(3)]
    for number in (1, 2, 3):
        text = LIKE % (number, 10 * number, number - 1) + b"}"
        found = read(lines, text, info, earlier)
        assert found == read(RecordLines(), text, info, earlier)
        assert (found.sequence, found.same_as) == (10 * number, earlier[number - 1])
    with pytest.raises(Refused, match="the id of an earlier record"):
        read(lines, LIKE % (4, 40, 3) + b"}", info, earlier)


@pytest.mark.parametrize(
    "more",
    [
        b',"id":"step0/layers.1:input.0"}',
        b',"\\u0069d":"step0/layers.1:input.0"}',
        b',"seq" : 10}',
        b',"same_as":"step0/layers.0:input.0"}',
        b',"at":["seg-00000.safetensors",0,4,"0123456789abcdef"]}',
    ],
)
def test_a_line_that_says_something_twice_is_read_by_itself(more: bytes) -> None:
    """JSON takes the last: no other line may be read as if it were its first."""
    lines, info = RecordLines(), RankInfo(rank=0, world_size=1)
    earlier = [TensorId.parse(f"step0/layers.{number}:input.0") for number in range(3)]
    for number in (1, 2):
        text = LIKE % (number, 10 * number, number - 1) + more
        assert read(lines, text, info, earlier) == read(RecordLines(), text, info, earlier)
        assert read(lines, text, info, earlier) == from_dict(Record, parse_json(text), rank=0)


def test_what_looks_like_a_name_inside_of_other_data_is_none() -> None:
    lines, info = RecordLines(), RankInfo(rank=0, world_size=1)
    text = LIKE.replace(b'"same_as"', b'"more":{"a":1,"same_as"').replace(b',"at"', b'},"at"')
    for number in (1, 2):
        found = read(lines, text % (number, number, number) + b"}", info, ())
        assert found.same_as is None
        assert found.id.module == f"layers.{number}"
