"""What commands leave behind and where, and what they say while they work."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support import tiny_train
from tests.support.invoking import invoke, replay


@pytest.fixture(scope="module")
def traces(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("traces")
    tiny_train.record(root / "good")
    tiny_train.record(root / "good-noisy", noise_seed=1)
    tiny_train.record(root / "wrong", "--scale", "1.5")
    return root


def diff(traces: Path, out: Path) -> tuple[object, ...]:
    """A replayed trace cannot be isolated."""
    sides = ("--reference", replay(traces / "good"), "--candidate", replay(traces / "wrong"))
    return ("diff", *sides, "--out", out, "--no-isolate")


class TestPage:
    def test_is_left_in_the_folder_also_where_another_is_asked_for(
        self, traces: Path, tmp_path: Path
    ) -> None:
        page = tmp_path / "elsewhere.html"
        invoke(*diff(traces, tmp_path / "out"), "--html", page).require(1, f"report: {page}")
        assert page.read_text() == (tmp_path / "out" / "report.html").read_text()

    def test_goes_to_a_pipe(
        self, traces: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.chdir(tmp_path)
        outcome = invoke(*diff(traces, tmp_path / "out"), "--html", "-")
        assert outcome.out == (tmp_path / "out" / "report.html").read_text()
        assert "NOT EQUIVALENT: second" in outcome.err
        assert [file.name for file in tmp_path.iterdir()] == ["out"]
