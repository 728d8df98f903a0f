"""A rank is traced to a spool and copied when it has ended: whole or not at all, and never lost."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from tests.support import tiny_train
from tests.support.faulty_store import FaultyStore
from tests.support.invoking import invoke
from tests.support.made_traces import write_rank
from ttrace.capture import shipping
from ttrace.capture.settings import Settings
from ttrace.capture.shipping import ShippedWriter, spool_folder, writer_of
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import TraceNotFound, UsageError
from ttrace.trace import upload
from ttrace.trace.progress import is_recorded
from ttrace.trace.reader import Trace
from ttrace.trace.store import Url
from ttrace.trace.upload import copy_rank

SCRIPT = Path(tiny_train.__file__)
INFO = RankInfo(rank=0, world_size=1)
END = Summary(steps=1, hooks_expected=0, hooks_fired=0)
FAULTY = "faulty://t/up"
WHERE = "/t/up/rank-00000"

# A rank that ends one step, and is killed in the next.
KILLED = """
import os, signal, sys
from pathlib import Path
from tests.unit.storage.test_uploading import settings_of, shipped, write
writer = shipped(settings_of(Path(sys.argv[1])))
write(writer, 0)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(upload, "_WAITS_SECONDS", (0.0, 0.0, 0.0))
    FaultyStore.store.clear()
    FaultyStore.reset()


@pytest.fixture
def rank(tmp_path: Path) -> Path:
    """The folder of a rank in a spool."""
    write_rank(tmp_path / "spool", 0, 1, {"m:output": torch.ones(100)})
    return tmp_path / "spool" / "rank-00000"


def settings_of(tmp_path: Path, where: str = "far", **how: object) -> Settings:
    folder = Url(f"local://{tmp_path}/{where}")
    return Settings(folder=folder, spool=tmp_path / "spool", **how)  # type: ignore[arg-type]


def shipped(settings: Settings) -> ShippedWriter:
    writer = writer_of(settings, INFO, None)
    assert isinstance(writer, ShippedWriter)
    return writer


def write(writer: ShippedWriter, step: int) -> None:
    id_ = TensorId.parse(f"step{step}/m:output")
    record = Record(id=id_, rank=0, sequence=step, dtype="float32", shape=(10,))
    writer.write(record, torch.ones(10))
    writer.end_step(step)


def test_a_rank_is_copied_and_nothing_is_left_behind(rank: Path) -> None:
    local = {path.name: path.read_bytes() for path in rank.iterdir()}
    fs = FaultyStore()
    copy_rank(rank, fs, WHERE)
    there = {path.rpartition("/")[2]: fs.cat_file(path) for path in fs.find(WHERE)}
    assert there == local
    assert not rank.parent.exists()
    assert Trace.open(FAULTY).ranks[0].summary is not None


def test_a_rank_is_not_there_before_all_of_it_is(rank: Path) -> None:
    class Stopping(FaultyStore):
        def put_file(self, lpath: str, rpath: str, *args: object, **more: object) -> None:
            if rpath.endswith("manifest.json"):
                raise PermissionError(rpath)
            super().put_file(lpath, rpath, *args, **more)

    with pytest.raises(PermissionError):
        copy_rank(rank, Stopping(), WHERE)
    assert FaultyStore().find(WHERE) != []
    with pytest.raises(TraceNotFound):
        Trace.open(FAULTY)
    assert not is_recorded(Url(FAULTY), 1)
    copy_rank(rank, FaultyStore(), WHERE)  # what is there is ours
    assert is_recorded(Url(FAULTY), 1)


@pytest.mark.parametrize("failures", [1, 3])
def test_errors_that_pass_are_tried_again(rank: Path, failures: int) -> None:
    FaultyStore.reset(failures)
    copy_rank(rank, FaultyStore(), WHERE)
    assert Trace.open(FAULTY).ranks[0].summary is not None


def test_an_error_that_stays_leaves_the_spool_as_it_is(rank: Path) -> None:
    FaultyStore.reset(1000)
    with pytest.raises(ConnectionError):
        copy_rank(rank, FaultyStore(), WHERE)
    assert Trace.open(rank.parent).ranks[0].summary is not None


def test_a_file_of_another_size_is_no_copy(rank: Path) -> None:
    class Shortening(FaultyStore):
        def put_file(self, lpath: str, rpath: str, *args: object, **more: object) -> None:
            self.pipe_file(rpath, b"short")

    with pytest.raises(OSError, match=r"journal.jsonl has 5 bytes, .* has "):
        copy_rank(rank, Shortening(), WHERE)
    assert Trace.open(rank.parent).ranks[0].summary is not None


def test_what_is_there_is_never_overwritten(rank: Path) -> None:
    fs = FaultyStore()
    fs.pipe_file(f"{WHERE}/journal.jsonl", b"of another run")
    with pytest.raises(FileExistsError, match="a trace is never overwritten"):
        copy_rank(rank, fs, WHERE)
    assert fs.cat_file(f"{WHERE}/journal.jsonl") == b"of another run"
    assert (rank / "seg-00000.safetensors").exists()


def test_folders_are_made_and_buckets_are_not() -> None:
    made = set()

    class Lacking(FaultyStore):
        def exists(self, path: str, **_: object) -> bool:
            return path == "bucket"

        def makedirs(self, path: str, exist_ok: bool = False) -> None:
            made.add(path)

        def pipe_file(self, path: str, value: bytes, *args: object, **_: object) -> None:
            if path.rpartition("/")[0] not in made:
                raise FileNotFoundError(path)

    upload.put_bytes(Lacking(), "bucket/run/file", b"")
    with pytest.raises(FileNotFoundError):
        upload.put_bytes(Lacking(), "nowhere/run/file", b"")
    assert made == {"bucket/run"}


@pytest.mark.flow
def test_a_rank_is_copied_when_it_has_closed_its_trace(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    writer = shipped(settings)
    for step in range(2):
        write(writer, step)
    assert not (tmp_path / "far").exists()
    writer.close(END)
    writer.shipping.wait()
    trace = Trace.open(str(settings.folder))
    assert (trace.ranks[0].steps, trace.ranks[0].summary) == ((0, 1), END)
    assert list((tmp_path / "spool").rglob("*")) == []
    with pytest.raises(UsageError, match="traced already"):
        shipped(settings)


def test_a_rank_that_recorded_nothing_is_not_copied(tmp_path: Path) -> None:
    writer = shipped(settings_of(tmp_path))
    writer.withdraw()
    writer.abandon()
    writer.shipping.wait()
    assert not (tmp_path / "far").exists()


@pytest.mark.flow
def test_a_rank_that_breaks_off_is_there_without_an_end(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    writer = shipped(settings)
    write(writer, 0)
    writer.abandon()
    writer.shipping.wait()
    assert Trace.open(str(settings.folder)).ranks[0].summary is None


@pytest.mark.flow
def test_a_rank_that_is_killed_is_copied_without_a_supervisor(tmp_path: Path) -> None:
    done = subprocess.run([sys.executable, "-c", KILLED, str(tmp_path)], check=False)
    assert done.returncode == -9
    deadline = time.monotonic() + 30.0
    while (tmp_path / "spool").exists() and any((tmp_path / "spool").iterdir()):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    (found,) = Trace.open(tmp_path / "far").ranks.values()
    assert (found.steps, found.summary) == ((0,), None)


@pytest.mark.flow
def test_a_failed_copy_is_said_and_the_spool_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "far").write_text("a file where the folder should be")
    writer = shipped(settings_of(tmp_path, "far/run"))
    write(writer, 0)
    writer.close(END)
    with caplog.at_level(logging.ERROR):
        writer.shipping.wait()
    assert "the trace was not uploaded to local://" in caplog.text
    assert f"is kept in {writer.folder}" in caplog.text
    assert "NotADirectoryError" in caplog.text
    assert "training goes on" in caplog.text
    assert Trace.open(writer.folder.parent).ranks[0].summary == END


@pytest.mark.flow
def test_a_store_that_never_answers_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "sleeping.py").write_text("import time; time.sleep(60)")
    monkeypatch.setattr(upload, "__file__", str(tmp_path / "sleeping.py"))
    monkeypatch.setattr(shipping, "_LEAST_SECONDS", 0.1)
    writer = shipped(settings_of(tmp_path))
    writer.close(END)
    with caplog.at_level(logging.ERROR):
        writer.shipping.wait()
    assert "it took longer than 0 s" in caplog.text
    assert Trace.open(writer.folder.parent).ranks[0].summary == END


def test_the_spool_belongs_to_one_user_and_one_trace(tmp_path: Path) -> None:
    one, other = (spool_folder(Url(f"s3://b/{name}"), tmp_path) for name in ("a", "b"))
    assert one != other
    assert stat.S_IMODE(one.stat().st_mode) == 0o700
    other.rmdir()
    other.symlink_to(one)
    with pytest.raises(UsageError, match="belongs to somebody else"):
        spool_folder(Url("s3://b/b"), tmp_path)


def test_a_run_behind_a_url_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="only with one on a disk"):
        writer_of(settings_of(tmp_path, resume=True), INFO, None)
    invoke("run", "--resume", "--out", f"local://{tmp_path}/x", "--", "true").require(3, "--resume")


@pytest.mark.flow
def test_a_process_ends_when_all_is_copied(tmp_path: Path) -> None:
    """A script alone, without a launcher: the exit of the process waits for the copy."""
    environment = os.environ | {
        "TTRACE_OUT": f"local://{tmp_path}/far",
        "TTRACE_SPOOL": str(tmp_path / "spool"),
        "OMP_NUM_THREADS": "1",
    }
    done = subprocess.run(
        [sys.executable, str(SCRIPT)], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert Trace.open(tmp_path / "far").ranks[0].summary is not None


@pytest.mark.flow
def test_ttrace_run_records_to_a_url_as_to_a_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTRACE_SPOOL", str(tmp_path / "spool"))
    url = f"local://{tmp_path}/far"
    command = ["--", sys.executable, SCRIPT]
    invoke("run", "--out", url, *command).require(0, f"39 tensors from 1 of 1 rank in {url}")
    tiny_train.record(tmp_path / "near")
    far, near = Trace.open(url), Trace.open(tmp_path / "near")
    assert list(far.by_id()) == list(near.by_id())
    assert len(list((tmp_path / "far").glob("output-*.log"))) == 1
    assert list((tmp_path / "spool").rglob("*")) == []
    invoke("run", "--out", url, "--", "true").require(3, "traces are never overwritten")


@pytest.mark.flow
def test_ttrace_run_copies_what_a_killed_rank_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTRACE_SPOOL", str(tmp_path / "spool"))
    command = ["--", sys.executable, SCRIPT, "--kill"]
    invoke("run", "--out", f"local://{tmp_path}/far", *command).require(2, "SIGKILL")
    assert Trace.open(tmp_path / "far").ranks[0].summary is None
    (far,) = (tmp_path / "far").glob("output-*.log")
    (near,) = (path for path in (tmp_path / "spool").rglob("*") if path.is_file())
    assert far.read_bytes() == near.read_bytes()


@pytest.mark.flow
def test_ttrace_run_says_where_ranks_are_that_could_not_be_copied(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTRACE_SPOOL", str(tmp_path / "spool"))
    far = tmp_path / "far"
    taken = f"mkdir {far}/rank-00000; echo 1 > {far}/rank-00000/x; {sys.executable} {SCRIPT}"
    done = invoke("run", "--out", f"local://{far}", "--", "sh", "-c", taken)
    done.require(2, "1 of its ranks could not be copied", "a trace is never overwritten")
    (manifest,) = (tmp_path / "spool").rglob("manifest.json")
    assert f"kept in {manifest.parents[1]}" in done.err
    assert Trace.open(manifest.parents[1]).ranks[0].summary is not None
