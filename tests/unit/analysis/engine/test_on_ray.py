"""A cluster of Ray on this machine: workers that die are replaced, and errors are those of one."""

from __future__ import annotations

import importlib.util
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.jobs import Corrupt, Doubled, Killed, Slow
from ttrace.analysis.engine import Engine, Workplace
from ttrace.errors import CorruptTrace, WorkerLost

pytestmark = [
    pytest.mark.flow,
    pytest.mark.extras,
    pytest.mark.filterwarnings("ignore"),  # Ray leaves sockets and processes to the end
    pytest.mark.skipif(
        importlib.util.find_spec("ray") is None, reason="Ray is not installed: `make test-flows`"
    ),
]
MANY = 64 << 20  # what a batch costs at least: such a job is one by itself


@pytest.fixture(scope="module")
def cluster() -> Iterator[Engine]:
    from ttrace.analysis.engine.on_ray import OnRay

    with OnRay(2) as engine:
        yield engine


def mapped(engine: Engine, jobs: Sequence[Any]) -> dict[int, Any]:
    with Workplace() as here:
        return dict(engine.map(jobs, here))


def doubled(found: dict[int, Any]) -> list[int]:
    return [found[number][0] for number in sorted(found)]


def test_every_job_is_done_once_by_workers(cluster: Engine) -> None:
    found = mapped(cluster, [Doubled(number=number, cost=MANY) for number in range(20)])
    assert doubled(found) == [2 * number for number in range(20)]
    assert os.getpid() not in {process for _, process in found.values()}


def test_work_of_a_killed_worker_is_done_by_another(cluster: Engine, tmp_path: Path) -> None:
    jobs: list[Any] = [Doubled(number=number, cost=MANY) for number in range(8)]
    jobs[2] = Killed(number=2, cost=MANY, folder=tmp_path, times=2)
    assert doubled(mapped(cluster, jobs)) == [2 * number for number in range(8)]
    assert jobs[2].deaths() == 2


def test_who_always_dies_is_named_and_the_cluster_goes_on(cluster: Engine, tmp_path: Path) -> None:
    jobs: list[Any] = [Doubled(number=number, cost=MANY) for number in range(4)]
    jobs[1] = Killed(number=1, cost=MANY, folder=tmp_path, times=99)
    with pytest.raises(WorkerLost, match=r"3 workers of Ray died .* while they read job 1"):
        mapped(cluster, jobs)
    assert jobs[1].deaths() == 3
    assert doubled(mapped(cluster, jobs[:1])) == [0]


def test_the_error_is_the_one_that_one_process_meets_first(cluster: Engine) -> None:
    jobs: list[Any] = [Doubled(number=number, cost=MANY) for number in range(12)]
    jobs[3] = Corrupt(number=3, cost=MANY)
    jobs[9] = Corrupt(number=9, cost=3 * MANY)  # large: it goes first
    with pytest.raises(CorruptTrace) as caught:
        mapped(cluster, jobs)
    assert caught.value.args[0] == "bytes of job 3 were changed"


def test_what_nobody_waits_for_any_more_is_not_done(cluster: Engine, tmp_path: Path) -> None:
    slow = [Slow(number=number, cost=MANY, folder=tmp_path) for number in range(6)]
    with Workplace() as here:
        results: Any = cluster.map(slow, here)
        next(results)
        results.close()
    time.sleep(4 * Slow.SECONDS)
    assert 1 <= len(list(tmp_path.iterdir())) <= 3  # those that ran may end
