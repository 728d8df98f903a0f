"""A fix that was tried, in words, on the command line and as JSON."""

from __future__ import annotations

import gzip
import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from tests.support.invoking import GOLDEN, check_golden, invoke
from tests.support.made_results import made
from tests.unit.analysis.test_fix import isolated, result
from ttrace.analysis.fix import tried
from ttrace.core.fix import Fix, FixVerdict, Sighting
from ttrace.core.results import CheckResult, Verdict
from ttrace.report import fixes
from ttrace.report.json_file import render
from ttrace.report.terminal_fix import print_fix

CLEAN, WRONG = made(2), made(2, wrong_layer=1)


def printed(fix: Fix, width: int | None = None) -> str:
    file = io.StringIO()
    console = Console(
        file=file, width=width or 150, force_terminal=width is not None, color_system=None
    )
    print_fix(fix, "NOT EQUIVALENT: a, forward", "EQUIVALENT", console)
    return file.getvalue()


def written(folder: Path, **results: CheckResult) -> list[Path]:
    files = [folder / f"{name}.json" for name in results]
    for file, found in zip(files, results.values(), strict=True):
        file.write_text(render(found))
    return files


def test_every_member_has_words() -> None:
    assert set(fixes.VERDICTS) == set(FixVerdict)
    assert set(fixes.SIGHTINGS) == set(Sighting)
    assert set(fixes.TITLES) == set(fixes.FixGroup)
    assert all(hasattr(tried(CLEAN, CLEAN), group.value) for group in fixes.FixGroup)


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (WRONG, CLEAN, "FIXED: 1 root cause is gone; 91 tensors that failed pass"),
        (CLEAN, CLEAN, "NO CHANGE: both reports are equivalent"),
        (WRONG, WRONG, "NO CHANGE: 1 root cause remains; 91 tensors still fail"),
        (CLEAN, WRONG, "WORSE: 1 root cause is new; 91 tensors newly fail"),
        (
            result({"a": 9e4, "b": 9e4}, {"a": ("a",), "b": ("b",)}),
            result({"a": 9e4, "b": 0.1}, {"a": ("a",)}),
            (
                "PARTLY FIXED: 1 root cause is gone, 1 root cause remains; 1 tensor that failed "
                "passes, 1 tensor still fails"
            ),
        ),
        (
            result({"a": 9e4, "b": 9e4}),
            result({"a": 9.0, "b": 9e6}),
            "NO CHANGE: 2 tensors still fail (1 better, 1 worse)",
        ),
        (
            result({"a": 9e4, "b": 0.1}),
            result({"a": Verdict.UNDECIDED, "b": 0.1}),
            "UNDECIDED: the report after the fix decides nothing; 1 tensor is undecided now",
        ),
        (
            result({"a": 9e4}),
            result({"b": 0.1}),
            (
                "NOT COMPARABLE: no tensor is in both reports, which are of other models or of "
                "other steps"
            ),
        ),
        (
            result({"a": 0.1, "b": 9e4}),
            result({"a": 0.1}),
            (
                "FIXED AS FAR AS IT IS SEEN: 1 tensor is in the report before the fix only, where "
                "1 failed"
            ),
        ),
    ],
)
def test_the_verdict_stands_first(before: CheckResult, after: CheckResult, said: str) -> None:
    fix = tried(before, after)
    assert fixes.fix_headline(fix) == said
    assert printed(fix).splitlines()[0] == said


@pytest.mark.parametrize(
    ("before", "said"),
    [
        (
            isolated({"a": 9e4, "b": 0.1}, {"a": ("a",)}),
            "b, forward: 90,000x its tolerance now; what speaks against it passed before",
        ),
        (
            isolated({"a": 9e4, "b": Verdict.UNDECIDED}, {"a": ("a",)}),
            (
                "b, forward: 90,000x its tolerance now; uncovered: what speaks against it could "
                "not be judged before"
            ),
        ),
        (
            result({"a": 9e4, "b": 9e4}, {"a": ("a",)}),
            "b, forward: 90,000x its tolerance now",
        ),
    ],
)
def test_uncovered_is_said_only_where_it_is_known(before: CheckResult, said: str) -> None:
    fix = tried(before, isolated({"a": 0.1, "b": 9e4}, {"b": ("b",)}))
    (new,) = (section for section in fixes.sections(fix) if section.title.endswith("new"))
    assert new.rows == (said,)


def test_five_of_each_are_shown_and_the_rest_counted() -> None:
    text = printed(tried(WRONG, CLEAN))
    assert text.count("its tolerance before, ") == 5
    assert "\n  and 86 more\n" in text
    assert " its tolerance now" not in text


def test_a_verdict_without_a_ratio_says_itself() -> None:
    fix = tried(result({"a": Verdict.CONFLICT, "b": 9e4}), result({"a": 0.1, "b": 9e4}))
    assert "step0/a:output.0: conflict before, 0.1x its tolerance now" in printed(fix)


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_name_is_broken(width: int) -> None:
    text = printed(tried(WRONG, CLEAN), width)
    for failed in WRONG.failures[:5]:
        assert str(failed.id) in text


def test_names_cannot_steer_the_terminal() -> None:
    hostile = "a\x1b[2J[red]"
    fix = tried(result({hostile: 9e4}, {hostile: (hostile,)}), result({hostile: 0.1}))
    assert "\x1b" not in printed(fix)
    assert r"a\x1b[2J[red], forward" in printed(fix)


def test_exit_code_is_that_of_the_result_after(tmp_path: Path) -> None:
    unsure = replace(CLEAN, tensors=result({"a": Verdict.UNDECIDED}).tensors)
    clean, wrong, open_ = written(tmp_path, clean=CLEAN, wrong=WRONG, unsure=unsure)
    invoke("compare-reports", wrong, clean).require(0, "FIXED: ", f"before: {WRONG}")
    invoke("compare-reports", clean, wrong).require(1, "WORSE: ", f"after: {WRONG}")
    invoke("compare-reports", wrong, open_).require(2, "NOT COMPARABLE: ")
    invoke("compare-reports", wrong, tmp_path / "absent.json").require(3, "cannot read")


def test_json_has_every_entry(tmp_path: Path) -> None:
    clean, wrong = written(tmp_path, clean=CLEAN, wrong=WRONG)
    done = invoke("compare-reports", wrong, clean, "--json", "-")
    data = done.json
    assert (done.code, data["verdict"], data["exit_code"]) == (0, "fixed", 0)
    assert done.err.startswith(data["words"])
    assert len(data["fixed"]) == 91
    assert data["gone"][0]["blame"]["modules"] == ["layers.1.feed_forward.w2"]
    assert data["fixed"][0]["before"]["verdict"] == "mismatch"


def test_two_bugs_of_the_demo_read_as_the_golden_file(tmp_path: Path) -> None:
    files = [tmp_path / f"{name}.json" for name in ("row-bias", "column-input-grad")]
    for file in files:
        file.write_bytes(gzip.decompress((GOLDEN / "demo" / f"{file.name}.gz").read_bytes()))
    done = invoke("compare-reports", *files)
    check_golden("fix.txt", "".join(f"{line.rstrip()}\n" for line in done.out.splitlines()))
    assert done.code == 1
