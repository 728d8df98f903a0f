"""Who measures, as a user says it: processes, engines, and workers that never speak."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.invoking import invoke


def test_workers_say_what_one_process_says(traces: Path) -> None:
    arguments = ("check", traces / "good", traces / "wrong", "--perturbed")
    alone = invoke(*arguments, traces / "good-noisy")
    alone.require(1)
    assert invoke(*arguments, traces / "good-noisy", "--workers", "2").out == alone.out


def test_workers_of_an_engine_that_is_not_installed_are_refused(traces: Path) -> None:
    wrong = invoke("check", traces / "good", traces / "good", "--engine", "dask")
    wrong.require(3, "no engine is called 'dask'; there are processes, ray, serial")


def test_workers_that_never_speak_say_together_what_one_says(traces: Path, tmp_path: Path) -> None:
    perturbed = ("--perturbed", traces / "good-noisy")
    arguments = ("check", traces / "good", traces / "wrong", *perturbed)
    shared = (*arguments, "--parts", tmp_path)
    invoke(*shared).require(3, f"{tmp_path} holds no part of a check", "--worker 1/N")
    for number in (1, 2):
        done = invoke(*shared, "--worker", f"{number}/2")
        done.require(0, f"worker {number}/2 measured its share into")
        assert "EQUIVALENT" not in done.out
    assert invoke(*shared).out == invoke(*arguments).out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--worker", "1/2"), "--worker 1/2 needs --parts FOLDER"),
        (("--worker", "3/2", "--parts", "p"), "there is no worker 3 of 2"),
        (("--worker", "1", "--parts", "p"), "'1' is no worker"),
        (("--worker", "1/2", "--parts", "p", "--json", "r"), "give --json to the check that"),
    ],
)
def test_workers_that_cannot_be_are_refused(
    options: tuple[str, ...], words: str, traces: Path
) -> None:
    invoke("check", traces / "good", traces / "good", *options).require(3, words)
