"""The benchmark of recording in float8, on a CPU and a tiny model: only its rates need a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest

from benchmarks.gpu.model import TINY
from benchmarks.lowprecision.steps import measured, table


@pytest.mark.parametrize("recipe", ["tensorwise", "delayed"])
def test_a_tiny_step_is_measured_in_every_way(recipe: str) -> None:
    found = measured(recipe, "cpu", is_real=False, config=replace(TINY, layers=1), steps=1)
    assert found.recipe == recipe
    assert min(found.plain, found.fingerprints, found.plain_beside_full, found.full) > 0
    assert found.full_bytes > 10_000
    assert not found.faults
    head, _, line = table([found]).splitlines()
    assert line.startswith(f"| {recipe} | ")
    assert line.count("|") == head.count("|")
