"""The scripts of the examples for Ray and Kubernetes, with stand-ins for `ray` and `kubectl`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.invoking import strict_json

ROOT = Path(__file__).parents[2]
STANDINS = ROOT / "tests" / "support" / "clusters"
TRAIN = ROOT / "examples" / "01_data_parallel" / "train.py"
SHOWN = {
    "ray.md": ["05_ray/diff.sh"],
    "kubernetes.md": ["06_kubernetes/job.yaml", "06_kubernetes/diff.sh"],
    "slurm.md": ["04_slurm/diff.sh", "04_slurm/job.sh"],
    "large-checks.md": ["04_slurm/check.sh"],
}


@pytest.mark.flow
@pytest.mark.parametrize("example", ["05_ray", "06_kubernetes"])
def test_every_run_is_a_job_that_inherits_nothing_and_is_ended(
    example: str, tmp_path: Path
) -> None:
    jobs = tmp_path / "jobs"
    jobs.mkdir()
    out = tmp_path / "my out, $1"
    done = subprocess.run(
        [ROOT / "examples" / example / "diff.sh", out],
        env={
            "FAKE_JOBS": str(jobs),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{STANDINS}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
            "SCRIPT": str(TRAIN),
        },
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "run 2 of 3: candidate: 2 of 2 ranks have ended" in done.stdout
    assert strict_json((out / "result.json").read_text())["outcome"] == "equivalent"
    stopped = [log.read_text() for log in sorted(out.glob("*/output-stop.log"))]
    assert len(stopped) == len([*jobs.iterdir()]) == 3


@pytest.mark.parametrize("page", SHOWN)
def test_pages_show_the_files_as_they_are(page: str) -> None:
    text = (ROOT / "docs" / "how-to" / page).read_text()
    for name in SHOWN[page]:
        kind = "yaml" if name.endswith("yaml") else "bash"
        assert f"```{kind}\n{(ROOT / 'examples' / name).read_text()}```" in text, name


def test_examples_can_be_run() -> None:
    for script in (ROOT / "examples").glob("*/*.sh"):
        assert os.access(script, os.X_OK), script
