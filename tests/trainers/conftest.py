"""Trials in processes of their own: trainers keep what they know in global variables."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from benchmarks.trainers.__main__ import trainers_pool
from ttrace.lab.functions import WorkerPool
from zoo.trials import Trials


@pytest.fixture(scope="session")
def fresh_pool() -> Iterator[WorkerPool]:
    workers = trainers_pool()
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def fresh_trials(fresh_pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    return Trials(fresh_pool, tmp_path_factory.mktemp("trainers"))
