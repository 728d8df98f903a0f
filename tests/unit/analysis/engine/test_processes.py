"""One pool for many calls: workers that die are replaced, and errors are those of one process."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import Broken, Corrupt, Doubled, Killed
from ttrace.analysis.engine import Engine, Processes, Serial, Workplace
from ttrace.errors import CorruptTrace, UsageError, WorkerLost

MANY = 64 << 20  # what a batch costs at least: such a job is one by itself
ROOT = Path(__file__).parents[4]


@pytest.fixture(scope="module")
def pool() -> Iterator[Processes]:
    with Processes(2) as engine:
        yield engine


def mapped(engine: Engine, jobs: Sequence[Any]) -> dict[int, Any]:
    with Workplace() as here:
        return dict(engine.map(jobs, here))


def doubled(found: dict[int, Any]) -> list[int]:
    return [found[number][0] for number in sorted(found)]


def children() -> set[int]:
    listed = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text()
    return set(map(int, listed.split()))


def test_every_job_is_done_once_by_workers(pool: Processes) -> None:
    jobs = [Doubled(number=number, cost=MANY) for number in range(20)]
    found = mapped(pool, jobs)
    assert doubled(found) == [2 * number for number in range(20)]
    assert os.getpid() not in {process for _, process in found.values()}


def test_the_same_processes_serve_the_next_call(pool: Processes) -> None:
    jobs = [Doubled(number=number, cost=MANY) for number in range(20)]
    served = {p for _ in range(3) for _, p in mapped(pool, jobs).values()}
    assert len(served) <= pool.workers  # who is ready first may do all of a call


def test_nothing_to_do_is_done(pool: Processes) -> None:
    assert mapped(pool, []) == {}


def test_the_error_is_the_one_that_one_process_meets_first(pool: Processes) -> None:
    jobs: list[Any] = [Doubled(number=number, cost=MANY) for number in range(12)]
    jobs[3] = Corrupt(number=3, cost=MANY)
    jobs[9] = Corrupt(number=9, cost=3 * MANY)  # large: it goes first
    errors = []
    for engine in (Serial(), pool):
        with pytest.raises(CorruptTrace) as caught:
            mapped(engine, jobs)
        errors.append((type(caught.value), caught.value.args, str(caught.value)))
    assert errors[0] == errors[1]
    assert errors[0][1][0] == "bytes of job 3 were changed"
    assert doubled(mapped(pool, jobs[:3])) == [0, 2, 4]  # and the pool is as before


def test_what_cannot_travel_is_told_with_its_traceback(pool: Processes) -> None:
    with pytest.raises(RuntimeError, match=r"Homemade.*job 0 divides by nothing") as caught:
        mapped(pool, [Broken(number=0)])
    assert "tests/support/jobs.py" in "".join(caught.value.__notes__)


def test_work_of_a_killed_worker_is_done_by_another(pool: Processes, tmp_path: Path) -> None:
    jobs: list[Any] = [Doubled(number=number, cost=MANY) for number in range(8)]
    jobs[2] = Killed(number=2, cost=MANY, folder=tmp_path, times=2)
    assert doubled(mapped(pool, jobs)) == [2 * number for number in range(8)]
    assert jobs[2].deaths() == 2


def test_who_always_dies_is_named_and_the_pool_goes_on(pool: Processes, tmp_path: Path) -> None:
    jobs: list[Any] = [Doubled(number=number, cost=MANY) for number in range(4)]
    jobs[1] = Killed(number=1, cost=MANY, folder=tmp_path, times=99)
    with pytest.raises(WorkerLost, match=r"3 workers died .* read job 1, the last with signal 9"):
        mapped(pool, jobs)
    assert jobs[1].deaths() == 3
    assert doubled(mapped(pool, jobs[:1])) == [0]


@pytest.mark.flow
def test_no_process_outlives_its_check(tmp_path: Path) -> None:
    before = children()
    jobs = [Killed(number=number, folder=tmp_path, times=0, cost=MANY) for number in range(4)]
    engine = Processes(2)
    with engine, Workplace() as here:
        assert len(children() - before) == 2
        held: Any = engine.map(jobs, here)
        next(held)
    held.close()  # somebody had it longer than the engine
    assert children() == before


SCRIPT = """
import sys
from tests.support.jobs import Doubled
from ttrace.analysis.engine import Processes, Workplace
print("the script runs")
with Processes(1) as engine, Workplace() as here:
    print(dict(engine.map([Doubled(number=21)], here))[0][0])
"""


@pytest.mark.flow
def test_a_script_that_checks_is_not_run_again_by_workers(tmp_path: Path) -> None:
    """It need not say `if __name__ == "__main__"`, and what lies beside it is not imported."""
    (tmp_path / "script.py").write_text(SCRIPT)
    (tmp_path / "random.py").write_text("raise SystemExit('a file of the user was imported')")
    path = os.pathsep.join((str(ROOT / "src"), str(ROOT)))
    done = subprocess.run(
        [sys.executable, "-P", str(tmp_path / "script.py")],
        env=os.environ | {"PYTHONPATH": path},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "the script runs\n42\n"), done.stderr


def test_no_workers_are_no_engine() -> None:
    with pytest.raises(UsageError, match="at least one worker, found 0"):
        Processes(0)
