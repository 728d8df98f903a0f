"""The job script of the example, with stand-ins for the commands of Slurm: what its jobs say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.invoking import strict_json

ROOT = Path(__file__).parents[2]
SLURM = ROOT / "tests" / "support" / "slurm"
SCRIPT = ROOT / "examples" / "04_slurm" / "submit.sh"
TRAIN = ROOT / "examples" / "01_data_parallel" / "train.py"
COMPARED = ["reference", "perturbed", "candidate", "check"]
ISOLATED = ["tapped", "plans", "isolated-perturbed", "isolated", "root-cause"]


def submit(folder: Path, script: str) -> dict[str, str]:
    """What became of every job, by its name."""
    state = folder / "slurm"
    state.mkdir()
    subprocess.run(
        [SCRIPT, folder / "out"],
        env=os.environ
        | {
            "FAKE_SLURM": str(state),
            "OMP_NUM_THREADS": "1",
            "PATH": f"{SLURM}:{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(ROOT / "src"),
            "SCRIPT": script,
        },
        check=True,
    )
    ended = [(state / str(job)).read_text() for job in range(1, 10)]
    return dict(zip([*COMPARED, *ISOLATED], ended, strict=True))


@pytest.mark.flow
def test_jobs_of_a_correct_candidate_end_with_the_check(tmp_path: Path) -> None:
    jobs = submit(tmp_path, str(TRAIN))
    said = (tmp_path / "out" / "check.log").read_text()
    assert {name: jobs[name] for name in COMPARED} == dict.fromkeys(COMPARED, "0"), said
    assert {jobs[name] for name in ISOLATED} == {"dropped"}
    assert said.startswith("EQUIVALENT: all")


@pytest.mark.flow
def test_jobs_of_a_wrong_candidate_name_the_root_cause(tmp_path: Path) -> None:
    jobs = submit(tmp_path, f"{TRAIN} --wrong-average")
    expected = dict.fromkeys([*COMPARED, *ISOLATED], "0") | {"check": "1", "root-cause": "1"}
    assert jobs == expected, (tmp_path / "out" / "root-cause.log").read_text()
    result = strict_json((tmp_path / "out" / "root-cause.json").read_text())
    assert result["culprits"][0]["blame"]["stage"] == "gradient_reduction"


def test_the_page_shows_the_script_as_it_is() -> None:
    page = (ROOT / "docs" / "how-to" / "slurm.md").read_text()
    assert f"```bash\n{SCRIPT.read_text()}```" in page
