"""A fix that was tried, in words, on the command line and as JSON."""

from __future__ import annotations

import gzip
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.fixes import result
from tests.support.invoking import GOLDEN, check_golden, invoke
from tests.support.made_results import made
from ttrace.cli.results import NO_FAILURE, NOT_COMPARABLE, fix_headline, fix_lines
from ttrace.core.results import CheckResult, Verdict, compare_results
from ttrace.report.json_file import render

CLEAN, WRONG = made(2), made(2, wrong_layer=1)


def written(folder: Path, **results: CheckResult) -> list[Path]:
    files = [folder / f"{name}.json" for name in results]
    for file, found in zip(files, results.values(), strict=True):
        file.write_text(render(found))
    return files


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (WRONG, CLEAN, "1 root cause is gone; 91 tensors that failed pass"),
        (CLEAN, CLEAN, NO_FAILURE),
        (WRONG, WRONG, "1 root cause remains; 91 tensors still fail"),
        (CLEAN, WRONG, "1 root cause is new; 91 tensors newly fail"),
        (
            result({"a": 9e4, "b": 9e4}, {"a": ("a",), "b": ("b",)}),
            result({"a": 9e4, "b": 0.1}, {"a": ("a",)}),
            (
                "1 root cause is gone, 1 root cause remains; 1 tensor that failed passes, "
                "1 tensor still fails"
            ),
        ),
        (
            result({"a": 9e4, "b": 9e4, "c": 9e4, "d": 0.1}),
            result({"a": Verdict.UNDECIDED, "b": Verdict.ACCEPTED, "d": 0.1}),
            (
                "1 tensor that failed is accepted now, 1 tensor that failed is undecided now, "
                "1 tensor that failed is not in the report after the fix"
            ),
        ),
        (result({"a": 9e4}), result({"b": 0.1}), NOT_COMPARABLE),
    ],
)
def test_what_changed_stands_first(before: CheckResult, after: CheckResult, said: str) -> None:
    fix = compare_results(before, after)
    assert fix_headline(fix) == said
    lines = list(fix_lines(fix, "one", "other"))
    assert lines[:3] == [said, "  before: one", "  after: other"]


def test_five_root_causes_are_shown_and_the_rest_counted() -> None:
    names = "abcdefg"
    before = result(dict.fromkeys(names, 9e4), {name: (name,) for name in names})
    lines = list(fix_lines(compare_results(before, result(dict.fromkeys(names, 0.1))), "", ""))
    assert lines[3:] == ["", "gone:", *(f"  {name}, forward" for name in "abcde"), "  and 2 more"]


def test_names_cannot_steer_the_terminal(tmp_path: Path) -> None:
    hostile = "a\x1b[2J[red]"
    before = result({hostile: 9e4}, {hostile: (hostile,)})
    done = invoke("compare-reports", *written(tmp_path, before=before, after=CLEAN))
    assert "\x1b" not in done.out
    same = invoke("compare-reports", *written(tmp_path, before=before, after=before))
    same.require(1, r"a\x1b[2J[red], forward")


def test_exit_code_is_that_of_the_result_after(tmp_path: Path) -> None:
    unsure = replace(CLEAN, tensors=result({"a": Verdict.UNDECIDED}).tensors)
    clean, wrong, open_ = written(tmp_path, clean=CLEAN, wrong=WRONG, unsure=unsure)
    invoke("compare-reports", wrong, clean).require(0, "is gone; ", f"before: {WRONG}")
    invoke("compare-reports", clean, wrong).require(1, "is new; ", f"after: {WRONG}")
    invoke("compare-reports", wrong, open_).require(2, "NOT COMPARABLE: ")
    invoke("compare-reports", wrong, tmp_path / "absent.json").require(3, "cannot read")


def test_json_has_places_and_counts(tmp_path: Path) -> None:
    clean, wrong = written(tmp_path, clean=CLEAN, wrong=WRONG)
    done = invoke("compare-reports", wrong, clean, "--json", "-")
    data = done.json
    assert (done.code, data["after"], data["exit_code"]) == (0, "equivalent", 0)
    assert done.err.startswith(data["words"])
    assert data["passing"] == 91
    assert data["gone"][0]["modules"] == ["layers.1.feed_forward.w2"]


def test_two_bugs_of_the_demo_read_as_the_golden_file(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in ("row-bias", "column-input-grad")]
    for file in files:
        file.write_bytes(gzip.decompress((GOLDEN / "demo" / f"{file.name}.gz").read_bytes()))
    done = invoke("compare-reports", *files)
    check_golden("fix.txt", "".join(f"{line.rstrip()}\n" for line in done.out.splitlines()))
    assert done.code == 1
