"""What docs/reference/clean.md says of checks made by hand."""

from pathlib import Path

import pytest

from benchmarks.clean.check import Check, read_checks, write_checks
from benchmarks.clean.slopes import Point, points_of, slope_of
from benchmarks.clean.table import page


def made(rows: int, ratio: float, *, seed: int = 1, isolated: bool = False) -> Check:
    return Check(
        key=f"rows/mlp/fp32/ddp2/adamw/8x{rows // 8}/w32/d2/s{seed}",
        isolated=isolated,
        tensors=10,
        alarms=int(ratio > 1),
        largest=ratio,
        largest_id="step0/head:grad.weight",
        by_statistic={"norm": ratio, "row": ratio / 2},
        by_kind={"grad": ratio},
        alarmed=[],
        seconds=1.0,
        torch="2.13.0",
        tool="0a1b2c3d" if isolated else "4e5f6071",
    )


def test_the_page_counts_alarms_and_lists_what_is_near_one() -> None:
    told = page([made(64, 0.5), made(512, 0.9), made(4096, 1.5), made(64, 0.1, isolated=True)])
    assert "| **checks with an alarm** | **1** |" in told
    assert "4e5f6071 (3 checks), 0a1b2c3d (1 checks)" in told
    assert "| mlp | 1.50 (1 of 3) | 0.10 |" in told
    assert "| row | 0.75 | 0.05 |" in told
    assert "| `rows/mlp/fp32/ddp2/adamw/8x512/w32/d2/s1` | plain | 1.50 | 1 |" in told
    assert "| `rows/mlp/fp32/ddp2/adamw/8x64/w32/d2/s1` | plain | 0.90 |  |" in told
    assert "8x8/w32/d2/s1` | plain | 0.50" not in told


def test_a_ratio_that_grows_as_the_root_of_rows_has_slope_one_half() -> None:
    checks = [made(rows, 0.01 * rows**0.5, seed=s) for rows in (64, 512, 4096) for s in (1, 2)]
    found = slope_of(points_of(checks, "rows"))
    assert found is not None
    assert found.value == pytest.approx(0.5)
    assert found.error == pytest.approx(0, abs=1e-6)
    assert str(found) == "+0.50 ± 0.00"


def test_series_have_a_level_each() -> None:
    points = [
        Point(series=name, size=size, ratio=level * size)
        for name, level in (("low", 1e-3), ("high", 1.0))
        for size in (2.0, 4.0, 8.0)
    ]
    found = slope_of(points)
    assert found is not None
    assert found.value == pytest.approx(1)


def test_one_size_has_no_slope() -> None:
    assert slope_of(points_of([made(64, 0.5, seed=seed) for seed in (1, 2, 3)], "rows")) is None


def test_checks_are_read_as_they_were_written(tmp_path: Path) -> None:
    checks = [made(64, 0.5), made(64, float("inf"), isolated=True)]
    write_checks(tmp_path / "clean.json", checks)
    assert read_checks(tmp_path / "clean.json") == checks
    assert len((tmp_path / "clean.json").read_text().splitlines()) == 2 + len(checks)
    assert read_checks(tmp_path / "absent.json") == []
