"""What `make bench` calls worse, with made-up numbers; and the page has what was recorded."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from benchmarks import __main__ as command
from benchmarks.figures import FIGURES, Better, regressions
from benchmarks.record import PAGE, Record, records, table, with_table


def results(
    check_vs_cat: float = 0.6, on_vs_off: float = 2.0, hooks: int = 0, slow_row: float = 1.0
) -> dict[str, Any]:
    rows = {"64": 1.0, "128": slow_row}
    return {
        "check": {"clean": {"check_vs_cat": check_vs_cat, "outcome": "equivalent"}},
        "capture": {"on_vs_off": on_vs_off, "hooks_installed_when_off": hooks},
        "compare_pass": {"fused_vs_norm_only": {"fp32": {"plain": rows}}},
    }


def recorded(commit: str, check_vs_cat: float, processor: str = "this") -> Record:
    return Record(
        commit=commit,
        date="2026-01-31",
        processor=processor,
        versions="torch 2",
        results=results(check_vs_cat=check_vs_cat),
    )


WORSE = {
    "a ratio that should be high fell": results(check_vs_cat=0.39),
    "a ratio that should be low rose": results(on_vs_off=3.1),
    "what was zero is not": results(hooks=1),
    "one of several": results(slow_row=1.6),
}


@pytest.mark.parametrize("name", WORSE)
def test_worse_by_more_than_a_third_is_a_regression(name: str) -> None:
    (found,) = regressions(results(), WORSE[name])
    assert ("fell" in str(found)) == (found.figure.better is Better.HIGHER)


SANE = {
    "nothing changed": results(),
    "worse by less than a third": results(check_vs_cat=0.41, on_vs_off=2.9, slow_row=1.4),
    "better": results(check_vs_cat=6.0, on_vs_off=0.2, slow_row=0.1),
    "not measured this time": {},
}


@pytest.mark.parametrize("name", SANE)
def test_noise_and_what_is_better_is_none(name: str) -> None:
    assert regressions(results(), SANE[name]) == ()


def test_what_was_not_recorded_cannot_get_worse() -> None:
    assert regressions({}, results(check_vs_cat=0.001)) == ()


def test_a_regression_says_what_and_by_how_much() -> None:
    (found,) = regressions(results(), results(check_vs_cat=0.02))
    assert str(found) == "check.clean.check_vs_cat fell from 0.60 to 0.02"


def test_a_figure_of_several_numbers_shows_both_ends() -> None:
    figure = next(f for f in FIGURES if f.pattern.endswith("fp32.plain.*"))
    assert figure.shown(results(slow_row=1.4)) == "1.00 to 1.40"
    assert figure.shown(results()) == "1.00"
    assert figure.shown({}) == ""
    assert figure.worst(results(slow_row=1.4)) == 1.4


def test_a_target_is_met_by_the_worst_of_several_numbers() -> None:
    figure = next(f for f in FIGURES if f.pattern.endswith("fp32.plain.*"))
    assert figure.target == 1.5
    assert figure.meets_target(results(slow_row=1.5))
    assert not figure.meets_target(results(slow_row=1.6))


def test_every_figure_is_another() -> None:
    counts = Counter(figure.pattern for figure in FIGURES)
    assert max(counts.values()) == 1


@pytest.mark.parametrize(
    ("measured", "code"), [(results(), 0), (results(check_vs_cat=0.02), 1)], ids=["sane", "worse"]
)
def test_the_last_line_and_the_exit_code_tell(
    capsys: pytest.CaptureFixture[str], measured: dict[str, Any], code: int
) -> None:
    assert command.compare([recorded("1f2e3d4", 0.6)], measured, "this") == code
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("FAILED") == bool(code)
    assert ("check.clean.check_vs_cat fell from 0.60 to 0.02" in last) == bool(code)
    assert "1f2e3d4" in last


def test_only_the_latest_record_counts() -> None:
    old, new, measured = recorded("old", 0.6), recorded("new", 0.1), results(check_vs_cat=0.1)
    assert command.compare([old, new], measured, "this") == 0
    assert command.compare([new, old], measured, "this") == 1
    assert command.compare([], measured, "this") == 0


def test_records_of_this_machine_count_before_those_of_others(
    capsys: pytest.CaptureFixture[str],
) -> None:
    here, other = recorded("here", 0.1), recorded("other", 0.6, processor="other")
    measured = results(check_vs_cat=0.1)
    assert command.compare([here, other], measured, "this") == 0
    assert "nothing is recorded of" not in capsys.readouterr().out
    assert command.compare([other], measured, "this") == 1
    assert "nothing is recorded of this: compared with other" in capsys.readouterr().out


def test_page_says_what_was_recorded_last_and_another_number_is_noticed() -> None:
    page, last = PAGE.read_text(), records()[-1]
    assert with_table(page, table(last)) == page
    changed = page.replace(f"| {FIGURES[0].shown(last.results)} |", "| 0.99 |", 1)
    assert with_table(changed, table(last)) == page != changed


def test_all_figures_are_recorded_and_those_of_the_check_meet_their_targets() -> None:
    last = records()[-1].results
    assert [figure.pattern for figure in FIGURES if not figure.values(last)] == []
    for figure in FIGURES:
        if figure.pattern.startswith("check."):
            assert figure.meets_target(last), f"{figure.pattern}: {figure.shown(last)}"
