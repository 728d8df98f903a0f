"""The page of benchmarks says what was recorded, and nothing else writes its numbers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import record
from benchmarks.figures import FIGURES
from benchmarks.record import BEGIN, END, PAGE, Record, records, table, with_table

MADE = Record(
    commit="1f2e3d4",
    date="2026-01-31",
    processor="2 cores",
    versions="torch 2",
    results={"storage": {"writer_vs_raw": 0.8123, "tensors": 400}, "other": {"unknown": 3.0}},
)


def test_table_has_the_figures_that_were_measured() -> None:
    assert table(MADE) == (
        "\nMeasured on 2026-01-31 at commit 1f2e3d4: 2 cores, torch 2.\n\n"
        "| what | measured | target |\n|---|---|---|\n"
        "| segment writer against raw `write()`, CPU time, xxh3 and journal included | 0.81 "
        "| at least 0.75 |\n\n"
    )


def test_table_says_where_a_target_is_missed() -> None:
    slow = replace(MADE, results={"storage": {"writer_vs_raw": 0.5}})
    assert "| 0.50 | at least 0.75, missed |" in table(slow)
    assert "missed" not in table(MADE)


def test_table_replaces_what_stands_between_the_markers() -> None:
    page = f"# Title\n\n{BEGIN}\nold\n{END}\n\nmore\n"
    once = with_table(page, "new\n")
    assert once == f"# Title\n\n{BEGIN}\nnew\n{END}\n\nmore\n"
    assert with_table(once, "new\n") == once


@pytest.mark.parametrize("page", ["# Title\n", f"{BEGIN}\n", f"{BEGIN}\n{END}\n{BEGIN}\n{END}\n"])
def test_page_without_its_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match="once each"):
        with_table(page, "new\n")


def test_page_says_what_was_recorded_last() -> None:
    page = PAGE.read_text()
    assert with_table(page, table(records()[-1])) == page


def test_page_with_another_number_is_noticed() -> None:
    """The companion of the test above."""
    page, last = PAGE.read_text(), records()[-1]
    shown = FIGURES[0].shown(last.results)
    changed = page.replace(f"| {shown} |", "| 0.99 |", 1)
    assert changed != page
    assert with_table(changed, table(last)) != changed


def test_a_record_is_written_and_read_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(record, "RECORDS", tmp_path / "results.json")
    monkeypatch.setattr(record, "PAGE", tmp_path / "page.md")
    record.PAGE.write_text(f"{BEGIN}\n{END}\n")
    assert record.records() == ()
    now = record.record_now(MADE.results)
    record.write([MADE, now])
    assert record.records() == (MADE, now)
    assert now.commit in record.PAGE.read_text()


def test_all_figures_are_recorded_and_those_of_the_check_meet_their_targets() -> None:
    last = records()[-1].results
    assert [figure.pattern for figure in FIGURES if not figure.values(last)] == []
    for figure in FIGURES:
        if figure.pattern.startswith("check."):
            assert figure.meets_target(last), f"{figure.pattern}: {figure.shown(last)}"
