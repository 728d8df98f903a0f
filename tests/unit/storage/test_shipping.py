"""A run that is traced to a URL: training is not held up, and a failed upload is only said."""

from __future__ import annotations

import logging
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tests.support import tiny_train
from tests.support.invoking import invoke
from ttrace.capture import shipping
from ttrace.capture.settings import Settings
from ttrace.capture.shipping import Shipping, spool_folder, writer_of
from ttrace.core.ids import TensorId
from ttrace.core.record import RankInfo, Record, Summary
from ttrace.errors import UsageError
from ttrace.trace import upload
from ttrace.trace.progress import is_recorded
from ttrace.trace.reader import Trace
from ttrace.trace.store import Url

SCRIPT = Path(tiny_train.__file__)
INFO = RankInfo(rank=0, world_size=1)
END = Summary(steps=1, hooks_expected=0, hooks_fired=0)


def settings_of(tmp_path: Path, where: str = "far", **how: object) -> Settings:
    folder = Url(f"local://{tmp_path}/{where}")
    return Settings(folder=folder, spool=tmp_path / "spool", **how)  # type: ignore[arg-type]


def write(writer: shipping.ShippedWriter, step: int) -> None:
    record = Record(
        id=TensorId.parse(f"step{step}/m:output"),
        rank=0,
        sequence=step,
        dtype="float32",
        shape=(10,),
    )
    writer.write(record, torch.ones(10))
    writer.end_step(step)


def shipped(tmp_path: Path, settings: Settings) -> shipping.ShippedWriter:
    writer = writer_of(settings, INFO, None)
    assert isinstance(writer, shipping.ShippedWriter)
    return writer


def test_steps_are_uploaded_and_the_spool_is_empty_at_the_end(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    writer = shipped(tmp_path, settings)
    for step in range(2):
        write(writer, step)
    writer.close(END)
    writer._shipping.wait()
    trace = Trace.open(str(settings.folder))
    assert trace.ranks[0].steps == (0, 1)
    assert trace.ranks[0].summary == END
    assert is_recorded(settings.folder, 1)
    assert not is_recorded(settings.folder, 2)
    assert list((tmp_path / "spool").rglob("*")) == []


def test_a_rank_that_recorded_nothing_starts_no_upload(tmp_path: Path) -> None:
    writer = shipped(tmp_path, settings_of(tmp_path))
    writer.withdraw()
    assert writer._shipping._process is None
    assert not (tmp_path / "far").exists()


def test_a_run_that_breaks_off_is_there_without_an_end(tmp_path: Path) -> None:
    settings = settings_of(tmp_path)
    writer = shipped(tmp_path, settings)
    write(writer, 0)
    writer.abandon()
    writer._shipping.wait()
    assert Trace.open(str(settings.folder)).ranks[0].summary is None


def test_a_failed_upload_is_said_and_the_spool_is_kept(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "far").write_text("a file where the folder should be")
    writer = shipped(tmp_path, settings_of(tmp_path, "far/run"))
    write(writer, 0)
    writer.close(END)
    with caplog.at_level(logging.ERROR):
        writer._shipping.wait()
    assert "the trace was not uploaded to local://" in caplog.text
    assert f"is kept in {writer.folder}" in caplog.text
    assert "training goes on" in caplog.text
    assert Trace.open(writer.folder.parent).ranks[0].summary == END


def test_telling_never_waits_nor_raises(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The process on the other end takes nothing, as if its store had stopped to answer."""
    sleeping = tmp_path / "sleeping.py"
    sleeping.write_text("import time; time.sleep(60)")
    monkeypatch.setattr(upload, "__file__", str(sleeping))
    ship = Shipping(tmp_path, Url("local:///nowhere"))
    for number in range(20_000):
        ship.segment(Path(f"seg-{number:05d}.safetensors"))
    assert len(ship._waiting) > 100_000  # of more than the line takes
    process = ship._process
    assert process is not None
    process.process.kill()
    process.process.wait()
    ship.end()
    ship.wait()
    assert isinstance(ship._failure, OSError)


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


@pytest.mark.slow
def test_a_process_ends_when_all_is_uploaded(tmp_path: Path) -> None:
    """A script alone, without a launcher: the exit of the process waits for the upload."""
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
    assert "fsspec" not in done.stderr


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


def test_a_command_that_fails_leaves_its_log_in_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TTRACE_SPOOL", str(tmp_path / "spool"))
    script = "echo it broke; exit 7"
    out = f"local://{tmp_path}/far"
    invoke("run", "--out", out, "--", "sh", "-c", script).require(2, "it broke", "exit code 7")
    (far,) = (tmp_path / "far").glob("output-*.log")
    (near,) = (tmp_path / "spool").rglob("output-*.log")
    assert "it broke" in far.read_text() == near.read_text()
