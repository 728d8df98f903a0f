"""Workers of a pool, and what functions start in them, end with the process that made it."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.support.processes import is_running, starts_survivors, survivors, wait_until
from ttrace.lab import functions
from ttrace.lab.functions import WorkerPool

pytestmark = pytest.mark.flow


def leaves_survivors(command: str, worker: str) -> None:
    subprocess.run(["sh", "-c", command], check=True)
    Path(worker).write_text(str(os.getpid()))


def hangs(worker: str) -> None:
    Path(f"{worker}-busy").touch()
    while True:
        time.sleep(1)


@pytest.fixture
def pids(tmp_path: Path) -> Iterator[Path]:
    folder = tmp_path / "pids"
    yield folder
    for path in folder.glob("*.pid"):
        if is_running(int(path.read_text())):
            os.kill(int(path.read_text()), signal.SIGKILL)


def test_survivors_outlive_a_task_but_not_the_pool(pids: Path, tmp_path: Path) -> None:
    pool = WorkerPool(1)
    pool.run(1, leaves_survivors, starts_survivors(pids), str(tmp_path / "worker"))
    assert len(survivors(pids)) == 5
    pool.close()
    assert survivors(pids) == {}
    assert not is_running(int((tmp_path / "worker").read_text()))


def test_a_worker_that_gives_no_answer_is_ended_with_them(pids: Path, tmp_path: Path) -> None:
    pool = WorkerPool(1)
    worker = str(tmp_path / "worker")
    pool.run(1, leaves_survivors, starts_survivors(pids), worker)
    with pytest.raises(TimeoutError, match="gave no answer"):
        pool.run(1, hangs, worker, timeout_seconds=0.5)
    assert survivors(pids) == {}
    assert not is_running(int((tmp_path / "worker").read_text()))
    assert pool.run(1, os_pid) != [os.getpid()]
    pool.close()


def fails_on_rank_0() -> None:
    if dist.get_rank() == 0:
        raise ValueError("the port is taken")
    time.sleep(600)


def test_what_a_rank_failed_of_is_told_beside_who_gave_no_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Who waits for a rank that failed is not waited for as long as that rank would have been."""
    monkeypatch.setattr(functions, "_AFTER_FAILURE_SECONDS", 2.0)
    pool, begun = WorkerPool(2), time.monotonic()
    with pytest.raises(TimeoutError, match=r"(?s)rank 1 .* gave no answer.*rank 0:.*port is taken"):
        pool.run(2, fails_on_rank_0)
    assert time.monotonic() - begun < functions.TASK_SECONDS
    pool.close()


def os_pid() -> int:
    return os.getpid()


PROGRAM = """
import sys
from tests.unit.lab import test_workers
from ttrace.lab.functions import WorkerPool
pool = WorkerPool(2)
pool.run(1, test_workers.leaves_survivors, *sys.argv[2:])
print("ready", flush=True)
if sys.argv[1] == "hang":
    pool.run(2, test_workers.hangs, sys.argv[3])
"""


@pytest.mark.parametrize("how", ["end", "hang"])
def test_they_end_with_a_process_that_does_not_close_its_pool(
    how: str, pids: Path, tmp_path: Path
) -> None:
    """Also when it is killed and its workers are busy."""
    worker = tmp_path / "worker"
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, how, starts_survivors(pids), str(worker)],
        cwd=Path(__file__).parents[3],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        stdout=subprocess.PIPE,
    )
    assert process.stdout is not None
    with process.stdout as said:
        assert said.readline() == b"ready\n"
        if how == "hang":
            wait_until(Path(f"{worker}-busy").exists)
            process.kill()
        process.wait(120)
    seconds = 0.0 if how == "end" else 60.0
    wait_until(lambda: not is_running(int(worker.read_text())), seconds)
    wait_until(lambda: survivors(pids) == {}, seconds)
