"""A small check starts no process; a large one has all cores."""

from __future__ import annotations

from pathlib import Path

import fsspec
import pytest

from ttrace.analysis.engine import Processes, Serial, capacity
from ttrace.analysis.engine.capacity import suitable_engine


@pytest.fixture(autouse=True)
def four_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "room_for_workers", lambda: 4)


def trace(folder: Path, *, tensors: int = 0, journal: int = 0) -> Path:
    """Of so many bytes, none of which is on disk."""
    rank = folder / "rank-00000"
    rank.mkdir(parents=True)
    for name, size in (("seg-00000.safetensors", tensors), ("journal.jsonl", journal)):
        with (rank / name).open("wb") as file:
            file.truncate(size)
    return folder


def test_little_to_read_is_read_in_this_process(tmp_path: Path) -> None:
    reference, candidate = (trace(tmp_path / name, tensors=1 << 30) for name in "rc")
    assert isinstance(suitable_engine(reference, [candidate]), Serial)


def test_much_to_read_is_shared_by_all_cores(tmp_path: Path) -> None:
    reference, candidate = (trace(tmp_path / name, tensors=1 << 34) for name in "rc")
    engine = suitable_engine(reference, [candidate])
    assert isinstance(engine, Processes)
    assert engine.workers == 4


def test_the_reference_is_read_for_every_run(tmp_path: Path) -> None:
    reference = trace(tmp_path / "reference", tensors=capacity._ENOUGH_BYTES // 4)
    others = [trace(tmp_path / str(number)) for number in range(4)]
    assert isinstance(suitable_engine(reference, others[:3]), Serial)
    assert isinstance(suitable_engine(reference, others), Processes)


def test_one_core_measures_by_itself(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "room_for_workers", lambda: 1)
    large = trace(tmp_path, tensors=1 << 40)
    assert isinstance(suitable_engine(large, [large]), Serial)


def test_what_is_not_there_is_not_waited_for(tmp_path: Path) -> None:
    assert isinstance(suitable_engine(tmp_path / "absent", [tmp_path / "gone"]), Serial)


def test_what_is_elsewhere_counts_as_what_is_here(monkeypatch: pytest.MonkeyPatch) -> None:
    memory = fsspec.filesystem("memory")
    monkeypatch.setattr(capacity, "_ENOUGH_BYTES", 2000)
    for name, size in (("few", 10), ("many", 1000)):
        memory.pipe_file(f"/suitable/{name}/rank-00000/seg-00000.safetensors", b"0" * size)
    few, many = "memory://suitable/few", "memory://suitable/many"
    assert isinstance(suitable_engine(few, [few]), Serial)
    assert isinstance(suitable_engine(many, [many]), Processes)
