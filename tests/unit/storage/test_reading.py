"""Traces behind URLs are read like those on a disk: few requests, errors retried or named."""

from __future__ import annotations

import pickle
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import ttrace
from tests.support import tiny_train
from tests.support.faulty_store import FaultyStore, copied
from tests.support.invoking import invoke
from tests.support.made_traces import write_rank
from ttrace.analysis.engine import Processes
from ttrace.errors import CorruptTrace, TraceError, TraceNotFound, UsageError
from ttrace.trace import files, store
from ttrace.trace import spans as spans_module
from ttrace.trace.reader import Trace
from ttrace.trace.spans import SpanReader
from ttrace.trace.store import Url, local_path, place_of

RANKS = 40


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(store, "_WAITS_SECONDS", (0.0, 0.0, 0.0))
    FaultyStore.store.clear()
    FaultyStore.reset()
    yield
    FaultyStore.reset()


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("traces")
    tiny_train.record(folder / "reference")
    tiny_train.record(folder / "noisy", noise_seed=1)
    tiny_train.record(folder / "wrong", "--scale", "1.5")
    return folder


@pytest.fixture(scope="module")
def many_ranks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("many") / "trace"
    for rank in range(RANKS):
        values = {f"m{n}:output": torch.full((256,), float(n)) for n in range(30)}
        write_rank(folder, rank, RANKS, values)
    return folder


def test_a_place_is_a_path_unless_it_is_a_url() -> None:
    assert place_of("out/run") == Path("out/run")
    assert place_of("file:///data/my%20run") == Path("/data/my run")
    assert place_of("s3://bucket/run") == Url("s3://bucket/run")
    assert place_of(Url("s3://b")) / "rank-00000" / "x" == Url("s3://b/rank-00000/x")


def test_a_url_travels_to_other_processes() -> None:
    url = Url("s3://bucket/run")
    assert pickle.loads(pickle.dumps(url)) == url  # noqa: S301


def test_a_check_says_the_same_behind_a_url(traces: Path) -> None:
    sides = {name: copied(traces / name, f"faulty://t/{name}") for name in ("reference", "wrong")}
    noisy = [copied(traces / "noisy", "faulty://t/noisy")]
    far = ttrace.check(sides["reference"], sides["wrong"], perturbed=noisy)
    near = ttrace.check(traces / "reference", traces / "wrong", perturbed=[traces / "noisy"])
    assert far.exit_code == near.exit_code == 1
    assert far.tensors == near.tensors
    assert far.culprits == near.culprits


def test_long_journals_are_read_in_ranges(
    many_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(store, "RANGE_BYTES", 1000)
    monkeypatch.setattr(files, "RANGE_BYTES", 1000)
    far = Trace.open(copied(many_ranks, "faulty://t/many"))
    assert far.ranks == Trace.open(many_ranks).ranks
    assert FaultyStore.count("read") > 4 * RANKS


def test_a_trace_on_a_disk_needs_no_fsspec(traces: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    noisy = [traces / "noisy"]
    assert ttrace.check(traces / "reference", traces / "wrong", perturbed=noisy).exit_code == 1
    with pytest.raises(UsageError, match="needs fsspec"):  # it would be noticed
        Trace.open("faulty://t/reference")


def test_file_urls_are_paths(traces: Path) -> None:
    assert Trace.open(f"file://{traces / 'reference'}").path == traces / "reference"


def test_a_trace_is_opened_by_one_listing_and_without_a_look_at_each_file(
    many_ranks: Path,
) -> None:
    trace = Trace.open(copied(many_ranks, "faulty://t/many"))
    assert len(trace.ranks) == RANKS
    assert (FaultyStore.count("find"), FaultyStore.count("info")) == (1, 0)
    assert FaultyStore.count("read") == 2 * RANKS  # manifests and journals


def test_small_records_are_read_in_few_ranges(many_ranks: Path) -> None:
    trace = Trace.open(copied(many_ranks, "faulty://t/many"))
    FaultyStore.reset()
    with SpanReader(trace.path) as reader, SpanReader(many_ranks) as local:
        for id_, records in trace.by_id().items():
            for record in records:
                assert reader.whole(record) == local.whole(record), id_
    assert len(trace.by_id()) == 30
    assert FaultyStore.count("find") == 1
    assert FaultyStore.count("read") <= 2 * RANKS  # of 30 records each


def test_blocks_are_bounded_and_read_again(
    many_ranks: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spans_module, "_KEPT_BYTES", 4 << 10)
    monkeypatch.setattr(spans_module, "_LEAST_BLOCK_BYTES", 1 << 10)
    trace = Trace.open(copied(many_ranks, "faulty://t/many"))
    with SpanReader(trace.path) as reader:
        for records in trace.by_id().values():
            for record in records:
                reader.finish(record)
        assert len(reader._bytes._blocks) <= 4  # type: ignore[attr-defined]


def test_whole_tensors_come_in_large_ranges(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    values = torch.arange(1 << 18, dtype=torch.float32)
    write_rank(tmp_path / "t", 0, 1, {"m:output": values})
    monkeypatch.setattr(spans_module, "RANGE_BYTES", 1 << 18)
    trace = Trace.open(copied(tmp_path / "t", "faulty://t/large"))
    FaultyStore.reset()
    with SpanReader(trace.path) as reader:
        ((record,),) = trace.by_id().values()
        assert torch.equal(reader.load(record), values)
    assert FaultyStore.count("read") == 4  # of 2**18 bytes each


def test_errors_that_pass_are_tried_again(traces: Path) -> None:
    url = copied(traces / "reference", "faulty://t/reference")
    FaultyStore.reset(failures=3)
    assert len(Trace.open(url).ranks) == 1
    assert FaultyStore.failures == 0


def test_an_error_that_stays_names_file_and_offset(traces: Path) -> None:
    trace = Trace.open(copied(traces / "reference", "faulty://t/reference"))
    FaultyStore.reset(1000)
    with SpanReader(trace.path) as reader:
        record = next(r for r in trace.ranks[0].records if r.location)
        with pytest.raises(TraceError) as error:
            reader.load(record)
    assert "faulty://t/reference/rank-00000/seg-00000.safetensors at byte" in str(error.value)
    assert "then try again" in str(error.value)


def test_bytes_that_were_changed_on_the_way_are_found(traces: Path) -> None:
    url = copied(traces / "reference", "faulty://t/reference")
    trace = Trace.open(url)
    record = next(r for r in trace.ranks[0].records if r.location)
    assert record.location is not None
    fs = FaultyStore()
    path = f"/t/reference/rank-00000/{record.location.segment}"
    data = bytearray(fs.cat_file(path))
    data[record.location.offset] ^= 1
    fs.pipe_file(path, bytes(data))
    with SpanReader(trace.path) as reader, pytest.raises(CorruptTrace, match="were changed"):
        reader.load(record)


def test_a_missing_segment_is_named_before_anything_is_read(traces: Path) -> None:
    url = copied(traces / "reference", "faulty://t/reference")
    FaultyStore().rm_file("/t/reference/rank-00000/seg-00000.safetensors")
    with pytest.raises(CorruptTrace, match=r"rank-00000/seg-00000.safetensors is missing"):
        Trace.open(url)


def test_nothing_there_is_no_trace() -> None:
    with pytest.raises(TraceNotFound, match="faulty://t/none is empty or missing"):
        Trace.open("faulty://t/none")


def test_without_fsspec_or_its_package_a_url_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with pytest.raises(UsageError, match=r"fsspec cannot open nothing://x.*or give a path"):
        Trace.open("nothing://x/y")
    monkeypatch.setitem(sys.modules, "fsspec", None)
    monkeypatch.setitem(sys.modules, "fsspec.core", None)
    with pytest.raises(UsageError, match=r"pip install 'ttrace\[storage\]'"):
        Trace.open("s3://x/y")


def test_what_must_be_on_a_disk_refuses_a_url() -> None:
    assert local_path("out") == Path("out")
    with pytest.raises(UsageError, match="a folder or file of this machine was expected"):
        ttrace.diff("true", "true", out="s3://bucket/run")


@pytest.mark.flow
def test_other_processes_read_behind_urls_too(traces: Path) -> None:
    near = ttrace.check(traces / "reference", traces / "wrong")
    far = ttrace.check(
        f"local://{traces / 'reference'}", f"local://{traces / 'wrong'}", engine=Processes(2)
    )
    assert far.tensors == near.tensors


def test_results_and_pages_go_to_urls(traces: Path, tmp_path: Path) -> None:
    there = f"local://{tmp_path}/results"
    sides = [f"local://{traces / name}" for name in ("reference", "reference")]
    noisy = ["--perturbed", f"local://{traces / 'noisy'}"]
    where = ["--json", f"{there}/r.json", "--html", f"{there}/page.html"]
    made = invoke("check", *sides, *noisy, *where)
    assert made.code == 0, made.err
    assert invoke("report", f"{there}/r.json").code == 0
    assert "<html" in (tmp_path / "results" / "page.html").read_text()
    shown = invoke("show", sides[0])
    assert f"{sides[0]}: " in shown.out
