"""What the tables of docs/reference/megatron.md say of results made by hand."""

from typing import Any

from benchmarks.megatron.table import bug_rows, layout_rows, silent, together


def bug_entry(*named: str, twin: tuple[int, int] = (0, 0)) -> dict[str, Any]:
    return {
        "source": "somewhere",
        "layout": "tp=2",
        "expected": ["a, forward", "b, forward"],
        "is_exact": sorted(named) == ["a, forward", "b, forward"],
        "bug": {
            "exit_code": 1,
            "named": list(named),
            "evidence": "inf",
            "seconds": 3.0,
        },
        "twin": {"exit_code": twin[0], "isolated_exit_code": twin[1]},
        "seconds": 5.0,
    }


A, B, C = "a, forward", "b, forward", "c, forward"


def test_a_twin_is_silent_in_both_runs_or_not_at_all() -> None:
    assert silent(bug_entry(twin=(0, 0))["twin"]) == "silent"
    assert silent(bug_entry(twin=(0, 1))["twin"]) == "exit 0, isolated 1"


def test_rows_tell_what_was_found_and_what_could_not_run() -> None:
    rows = list(bug_rows({"first": bug_entry(A, B, C), "second": {"error": "...\nKeyError: x"}}))
    assert "| a, forward; b, forward and 1 more | no | inf | silent |" in rows[2]
    assert "not run: KeyError: x" in rows[3]


def test_a_layout_is_named_without_its_precision() -> None:
    entry = {"exit_code": 1, "tensors": 8, "judged": 6, "largest": 2.0, "seconds": 1.0}
    assert list(layout_rows({"TP2 SP bf16": entry}))[2].startswith(
        "| TP2 SP | bf16 | ALARM | 8 | 75.0% | 2.00 |"
    )


def test_together_counts_errors_as_not_found() -> None:
    bugs = {"first": bug_entry(A, B), "second": {"error": "KeyError"}}
    (line,) = together({}, bugs)
    assert "1 of 2 bugs are found, 1 named as they should; 1 of 2 twins are silent" in line
