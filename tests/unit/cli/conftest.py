"""Traces that commands are tried on; no test changes them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny_train


@pytest.fixture(scope="session")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("traces")
    tiny_train.record(root / "good")
    tiny_train.record(root / "good-noisy", noise_seed=1)
    tiny_train.record(root / "wrong", "--scale", "1.5")
    tiny_train.record(root / "nan", "--nan")
    return root
