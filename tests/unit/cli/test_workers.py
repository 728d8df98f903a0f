"""Who measures, as a user says it: processes and engines."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.invoking import invoke


@pytest.mark.flow
def test_workers_say_what_one_process_says(traces: Path) -> None:
    arguments = ("check", traces / "good", traces / "wrong", "--perturbed")
    alone = invoke(*arguments, traces / "good-noisy")
    alone.require(1)
    assert invoke(*arguments, traces / "good-noisy", "--workers", "2").out == alone.out


def test_workers_of_an_engine_that_is_not_installed_are_refused(traces: Path) -> None:
    wrong = invoke("check", traces / "good", traces / "good", "--engine", "dask")
    wrong.require(3, "no engine is called 'dask'; there are processes, ray, serial")
