"""What a rank has written is uploaded: segments before the journal that speaks of them."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import ClassVar

import pytest
import torch

from tests.support.faulty_store import FaultyStore
from tests.support.made_traces import write_rank
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record
from ttrace.trace import upload
from ttrace.trace.reader import Trace
from ttrace.trace.upload import Upload
from ttrace.trace.writer import TraceWriter

URL = "faulty://t/up"
WHERE = "/t/up/rank-00000"


class Lines:
    """What a rank says, one line after the other, while the upload runs."""

    def __init__(self) -> None:
        self._lines: queue.Queue[str | None] = queue.Queue()

    def say(self, *lines: str | None) -> None:
        for line in lines:
            self._lines.put(line)

    def __iter__(self) -> Iterator[str]:
        while (line := self._lines.get()) is not None:
            yield f"{line}\n"


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_WAITS_SECONDS", (0.01, 0.01, 0.01))
    monkeypatch.setattr(upload, "_JOURNAL_SECONDS", 0.0)
    FaultyStore.store.clear()
    FaultyStore.reset()


def uploading(folder: Path) -> tuple[Upload, list[str]]:
    told: list[str] = []
    return Upload(folder / "rank-00000", FaultyStore(), WHERE, told.append), told


def one_rank(folder: Path) -> int:
    """Its journal's size."""
    write_rank(folder, 0, 1, {"m:output": torch.ones(100)})
    return (folder / "rank-00000" / "journal.jsonl").stat().st_size


def names() -> set[str]:
    return {path.removeprefix(f"{WHERE}/") for path in FaultyStore().find(WHERE)}


def wait_for(condition: Callable[[], bool]) -> None:
    done = threading.Event()
    for _ in range(500):
        if condition():
            return
        done.wait(0.01)
    raise AssertionError("it did not come to that within 5 s")


def test_all_is_there_and_nothing_is_left_behind(tmp_path: Path) -> None:
    size = one_rank(tmp_path / "spool")
    local = {p.name: p.read_bytes() for p in (tmp_path / "spool" / "rank-00000").iterdir()}
    work, _ = uploading(tmp_path / "spool")
    assert work.run(["segment seg-00000.safetensors\n", f"journal {size} 1\n", "end\n"])
    fs = FaultyStore()
    assert {name: fs.cat_file(f"{WHERE}/{name}") for name in names()} == local
    assert not (tmp_path / "spool").exists()
    assert Trace.open(URL).ranks[0].summary is not None


def test_a_journal_waits_for_the_segments_that_it_speaks_of(tmp_path: Path) -> None:
    size = one_rank(tmp_path / "spool")
    work, _ = uploading(tmp_path / "spool")
    lines = Lines()
    thread = threading.Thread(target=work.run, args=(lines,))
    thread.start()
    lines.say(f"journal {size} 1")
    wait_for(lambda: "manifest.json" in names())
    wait_for(lambda: len(work._due) == 1)
    assert "journal.jsonl" not in names()
    lines.say("segment seg-00000.safetensors")
    wait_for(lambda: "journal.jsonl" in names())
    lines.say("end", None)
    thread.join(5.0)
    assert not thread.is_alive()
    order = [path.rpartition("/")[2] for what, path, _ in FaultyStore.asked if what != "find"]
    assert order.index("seg-00000.safetensors") < order.index("journal.jsonl")


def test_a_rank_that_died_leaves_the_steps_that_it_had_ended(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "spool", RankInfo(rank=0, world_size=1))
    sealed: list[Path] = []
    writer._segments.on_closed = sealed.append
    stops = []
    for step in range(2):
        record = Record(
            id=TensorId.parse(f"step{step}/m:output"),
            rank=0,
            sequence=step,
            dtype="float32",
            shape=(10,),
        )
        writer.write(record, torch.ones(10))
        if step == 0:
            writer.end_step(0)
            writer._segments.seal()
            stops.append((writer.folder / "journal.jsonl").stat().st_size)
    writer.abandon()
    work, _ = uploading(tmp_path / "spool")
    assert not work.run([f"segment {sealed[0].name}\n", f"journal {stops[0]} 1\n"])
    (rank,) = Trace.open(URL).ranks.values()
    assert (rank.steps, rank.summary) == ((0,), None)
    assert (tmp_path / "spool" / "rank-00000" / "journal.jsonl").exists()


@pytest.mark.parametrize("failures", [1, 3])
def test_errors_that_pass_are_tried_again(tmp_path: Path, failures: int) -> None:
    size = one_rank(tmp_path / "spool")
    FaultyStore.reset(failures)
    work, _ = uploading(tmp_path / "spool")
    assert work.run(["segment seg-00000.safetensors\n", f"journal {size} 1\n", "end\n"])
    assert Trace.open(URL).ranks[0].summary is not None


def test_an_error_that_stays_leaves_the_spool_as_it_is(tmp_path: Path) -> None:
    size = one_rank(tmp_path / "spool")
    FaultyStore.reset(1000)
    work, _ = uploading(tmp_path / "spool")
    with pytest.raises(ConnectionError):
        work.run(["segment seg-00000.safetensors\n", f"journal {size} 1\n", "end\n"])
    FaultyStore.reset()
    assert Trace.open(tmp_path / "spool").ranks[0].summary is not None


def test_what_is_there_is_never_overwritten(tmp_path: Path) -> None:
    size = one_rank(tmp_path / "spool")
    fs = FaultyStore()
    fs.pipe_file(f"{WHERE}/journal.jsonl", b"of another run")
    work, _ = uploading(tmp_path / "spool")
    with pytest.raises(FileExistsError, match="a trace is never overwritten"):
        work.run(["segment seg-00000.safetensors\n", f"journal {size} 1\n", "end\n"])
    assert fs.cat_file(f"{WHERE}/journal.jsonl") == b"of another run"
    assert (tmp_path / "spool" / "rank-00000" / "seg-00000.safetensors").exists()


def test_files_are_told_of_only_once_somebody_waits(tmp_path: Path) -> None:
    """Nobody reads what is told before: a pipe would be full, and hold up the upload."""
    size = one_rank(tmp_path / "spool")
    work, told = uploading(tmp_path / "spool")
    lines = Lines()
    thread = threading.Thread(target=work.run, args=(lines,))
    thread.start()
    lines.say("segment seg-00000.safetensors")
    wait_for(lambda: "seg-00000.safetensors" in names())
    assert told == []
    lines.say(f"journal {size} 1", "end", None)
    thread.join(5.0)
    assert told == ["journal.jsonl"]


class Lacking(FaultyStore):
    """Folders have to be made before a file is put there."""

    made: ClassVar[set[str]] = set()

    def exists(self, path: str, **_: object) -> bool:
        return path == "bucket"

    def makedirs(self, path: str, exist_ok: bool = False) -> None:
        self.made.add(path)

    def pipe_file(self, path: str, value: bytes, *args: object, **_: object) -> None:
        if path.rpartition("/")[0] not in self.made:
            raise FileNotFoundError(path)


def test_folders_are_made_and_buckets_are_not() -> None:
    upload.put_bytes(Lacking(), "bucket/run/file", b"")
    assert Lacking.made == {"bucket/run"}
    with pytest.raises(FileNotFoundError):
        upload.put_bytes(Lacking(), "nowhere/run/file", b"")
    assert Lacking.made == {"bucket/run"}
