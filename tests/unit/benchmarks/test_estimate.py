"""Measured checks are near what is said of them, and a fit finds what made its numbers."""

from pathlib import Path

import pytest

from benchmarks.estimate.checks import fitted, made_up
from benchmarks.fingerprints.values import Mesh
from ttrace.analysis.estimate.checking import (
    READ_SECONDS,
    CheckWork,
    check_memory,
    check_seconds,
)
from ttrace.lab.rates import measured_rates

_BEYOND = 2.0  # chosen: a busy machine takes longer than its self-test says, also of CPU


def test_the_fit_finds_what_made_the_numbers_and_none_below_nothing() -> None:
    rows = [[1.0, 10.0, 5.0], [1.0, 200.0, 7.0], [1.0, 30.0, 900.0], [1.0, 4000.0, 1.0]]
    made = [3 + 0.5 * a + 0.25 * b for _, a, b in rows]
    assert fitted(rows, made) == pytest.approx([3, 0.5, 0.25])
    assert fitted(rows, [3 + 0.5 * a - 0.001 * b for _, a, b in rows])[2] == 0.0


def test_what_a_check_takes_grows_with_what_there_is_to_do() -> None:
    little = CheckWork(records=1e3, pairs=1e2, stored_bytes=1e6)
    for more in ("records", "pairs", "stored_bytes"):
        values = {name: getattr(little, name) for name in ("records", "pairs", "stored_bytes")}
        much = CheckWork(**{**values, more: 1e12})
        assert check_seconds(much, 1, 1.0).low > check_seconds(little, 1, 1.0).high
    assert check_seconds(little, 1, 2.0).low == 2 * check_seconds(little, 1, 1.0).low
    assert check_memory(little, 4).low > check_memory(little, 1).low


@pytest.mark.slow
def test_a_check_takes_what_is_said(tmp_path: Path) -> None:
    rates = measured_rates("full", None, "cpu", tmp_path)
    found = made_up(tmp_path, 8, Mesh(tp=2, dp=2))
    seconds = check_seconds(found.work, 1, rates.read_seconds / READ_SECONDS)
    memory = check_memory(found.work, 1)
    peak = found.taken.peak_mb * 2**20
    assert seconds.low / _BEYOND < found.taken.cpu_seconds < seconds.high * _BEYOND
    assert memory.low < peak < memory.high
