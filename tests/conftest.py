"""Fixtures that every test may use."""

from collections.abc import Iterator

import pytest
import torch

from ttrace.lab.functions import WorkerPool
from zoo.trials import Trials
from zoo.workers import worker_pool


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    workers = worker_pool(4)
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def trials(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """References and twins that several tests ask for are run once."""
    return Trials(pool, tmp_path_factory.mktemp("trials"))


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two cores are shared by several processes; and oneDNN may use AMX where it is not allowed."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
