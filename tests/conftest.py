"""Fixtures that every test may use, and the tiers of the suite."""

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from ttrace.lab.functions import WorkerPool
from zoo.memo import Memo, forget_others, sources_digest
from zoo.trials import Trials
from zoo.workers import worker_pool

pytest_plugins = ["tests.tiers.plugin"]


@pytest.fixture(scope="session")
def pool() -> Iterator[WorkerPool]:
    workers = worker_pool(4)
    yield workers
    workers.close()


@pytest.fixture(scope="session")
def memo() -> Memo:
    """What other workers and earlier runs made of the same sources."""
    folder = Path(__file__).parents[1] / "build" / "memo"
    forget_others(folder, kept=sources_digest())
    return Memo(folder / sources_digest())


@pytest.fixture(scope="session")
def trials(pool: WorkerPool, memo: Memo, tmp_path_factory: pytest.TempPathFactory) -> Trials:
    """References and twins that several tests ask for are run once by all workers."""
    return Trials(pool, tmp_path_factory.mktemp("trials"), shared=memo)


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> None:
    """Two cores are shared by several processes; and oneDNN may use AMX where it is not allowed."""
    torch.set_num_threads(1)
    torch.backends.mkldnn.set_flags(False)
