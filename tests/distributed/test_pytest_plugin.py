"""The example's test through the plugin, in a pytest of its own: silent, and with a bug."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.made_results import made
from ttrace.testing import PAGES
from ttrace.testing.equivalence import _write_report

pytestmark = pytest.mark.flow

_RUNNING = "PYTEST_CURRENT_TEST"
ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples/03_pytest_tensor_parallel"


def run_example(folder: Path, *options: str, **environment: str) -> tuple[int, str]:
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pytest", "-c", os.devnull, "--rootdir", str(EXAMPLE)),
            *("-p", "no:cacheprovider", *options),
            str(EXAMPLE / "test_mlp.py"),
        ],
        cwd=folder,
        env=os.environ
        | {"PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": "1"}
        | environment,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.returncode, done.stdout + done.stderr


def test_correct_layer_passes_and_leaves_what_was_asked_for(tmp_path: Path) -> None:
    code, text = run_example(tmp_path, "--ttrace-html", "reports")
    assert code == 0, text
    (page,) = (tmp_path / "reports").iterdir()
    assert page.name == "test_mlp.test_tensor_parallel_equals_one_device.html"
    assert "EQUIVALENT: all" in page.read_text()


def test_forgotten_reduction_fails_with_everything_in_the_message(tmp_path: Path) -> None:
    code, text = run_example(tmp_path, "--ttrace-out", "kept", FORGET_REDUCTION="1")
    assert code == 1, text
    kept = tmp_path / "kept/test_mlp.test_tensor_parallel_equals_one_device"
    for words in (
        "NotEquivalent: NOT EQUIVALENT: mlp, forward",
        "root cause: mlp, forward: given the reference's values, output of mlp is wrong",
        "each rank holds a part and their sum equals the reference: an all-reduce is missing",
        "worst place: step0/mlp:output.0",
        "allowed: error norm",
        f"report: {kept / 'report.html'}",
    ):
        assert words in text, text
    assert (kept / "report.html").is_file()
    assert (kept / "result.json").is_file()


def _rank() -> int:
    import torch.distributed as dist

    return dist.get_rank()


@pytest.fixture
def asked(request: pytest.FixtureRequest) -> object:
    if not request.config.pluginmanager.has_plugin("ttrace"):
        pytest.skip("the plugin's entry point is not installed")
    return request.getfixturevalue("process_groups")


def test_fixture_runs_a_function_on_every_rank(asked: object) -> None:
    assert asked(2).run(2, _rank) == [0, 1]  # type: ignore[operator]


@pytest.mark.parametrize(
    ("running", "name"),
    [
        ("tests/test_mlp.py::test_tp[4] (call)", "test_mlp.test_tp-4"),
        ("tests/test_mlp.py::test_tp[a/b] (call)", "test_mlp.test_tp-a-b"),
        (
            "tests/test_mlp.py::test_tp[../../etc/x\x1b\n\udc80] (call)",
            "test_mlp.test_tp-..-..-etc-x",
        ),
        (f"tests/test_mlp.py::test_{'日' * 200} (call)", f"test_mlp.test_{'日' * 35}"),
        ("", "equivalence"),
    ],
)
def test_reports_are_called_like_their_tests(
    running: str, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In names that every file system takes, and in the folder that was chosen."""
    monkeypatch.setattr(os, "environ", os.environ | {PAGES: str(tmp_path), _RUNNING: running})
    path = _write_report(made(1), None)
    assert path == tmp_path / f"{name}.html"
    assert path.exists()
