"""A real Slurm on this machine; the tests are skipped where it is not installed."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.slurm_cluster import Cluster, missing_programs, running_cluster

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    if missing := missing_programs():
        pytest.skip(f"{', '.join(missing)} not installed: `make test-slurm` gets Slurm")
    with running_cluster() as cluster:
        yield cluster


@pytest.fixture
def cluster(
    shared_cluster: Cluster, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Cluster]:
    """With an environment and a folder in which jobs can be submitted; none is left of them."""
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "ttrace").write_text(f'#!/bin/sh\nexec {sys.executable} -m ttrace "$@"\n')
    (programs / "hostname").write_text("#!/bin/sh\necho localhost\n")
    for program in programs.iterdir():
        program.chmod(0o755)
    path = f"{programs}:{Path(sys.executable).parent}:/usr/bin:/bin:/usr/sbin"
    monkeypatch.setenv("PATH", path)
    monkeypatch.setenv("PYTHONPATH", f"{ROOT / 'src'}:{ROOT}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    for name, value in shared_cluster.environment.items():
        monkeypatch.setenv(name, value)
    monkeypatch.chdir(tmp_path)
    yield shared_cluster
    shared_cluster.cancel_all()
