"""Trials in processes of their own: trainers keep what they know in global variables."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest

from ttrace.lab.functions import WorkerPool
from zoo.memo import Memo
from zoo.trainers.pool import trainers_pool
from zoo.trials import Trials


@pytest.fixture(scope="session")
def fresh_pool() -> Iterator[WorkerPool]:
    workers = trainers_pool()
    yield workers
    workers.close()


@pytest.fixture(autouse=True)
def no_accelerator_is_left() -> Iterator[None]:
    """Processes that are forked for later tests would go on with what Accelerate knows here."""
    yield
    states = sys.modules.get("accelerate.state")
    if states is not None:
        states.AcceleratorState._reset_state(reset_partial_state=True)
        states.GradientState._reset_state()


@pytest.fixture(scope="session")
def fresh_trials(
    fresh_pool: WorkerPool, memo: Memo, tmp_path_factory: pytest.TempPathFactory
) -> Trials:
    return Trials(fresh_pool, tmp_path_factory.mktemp("trainers"), shared=memo)
