"""The page of the trace format states every limit, as it is."""

from __future__ import annotations

from pathlib import Path

from ttrace.core import limits

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "trace-format.md"


def test_every_limit_is_stated() -> None:
    stated = {
        cells[3].strip(" `"): cells[2].strip()
        for cells in (line.split("|") for line in PAGE.read_text().splitlines())
        if len(cells) == 5
    }
    expected = {
        name: f"{value:,}"
        for name, value in vars(limits).items()
        if name.isupper() and isinstance(value, int) and name != "MOST"
    }
    assert {name: stated.get(name) for name in expected} == expected
