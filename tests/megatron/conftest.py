"""Runs that several tests of Megatron-Core share."""

import importlib.util
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from zoo.megatron.training import trace_reference
from zoo.workers import WorkerPool

References = Callable[..., tuple[Path, Path]]


def pytest_ignore_collect() -> bool | None:
    """Without the package there is nothing to test."""
    return None if importlib.util.find_spec("megatron") else True


@pytest.fixture(scope="session")
def references(pool: WorkerPool, tmp_path_factory: pytest.TempPathFactory) -> References:
    """The one-process run of a model and its noisy twin, made once for each model."""
    made: dict[str, tuple[Path, Path]] = {}

    def reference(**model: Any) -> tuple[Path, Path]:
        key = repr(sorted(model.items()))
        if key not in made:
            made[key] = trace_reference(pool, tmp_path_factory.mktemp("reference"), **model)
        return made[key]

    return reference
