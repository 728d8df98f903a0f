"""The command: a table for people, JSON for programs, and exit codes for both."""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.invoking import invoke
from tests.support.pages import write_files
from tests.support.whatifs import group, reading, whatif
from ttrace.cli.whatif import answer_line, whatif_json, whatif_lines
from ttrace.core.door import strict_json

FIRST, SECOND = group(0.02, 0.1), group(0.08, 0.19, "layers.1")
PAGE = "docs/how-to/whatif.md"


def script(folder: Path, *flags: str) -> str:
    write_files(PAGE, folder)
    return shlex.join([sys.executable, str(folder / "train.py"), *flags])


@pytest.mark.flow
def test_names_the_layer_and_exits_0(tmp_path: Path) -> None:
    found = invoke(
        *("whatif", "--reference", script(tmp_path)),
        *("--candidate", script(tmp_path, "--float8", "--coarse", "1")),
        *("--high-precision", "layers.*", "--out", tmp_path / "out", "--json", "-"),
    )
    assert found.code == 0
    said = found.json
    assert said["answer"] == "one"
    assert said["groups"][0]["name"] == "layers.1"
    assert "layers.1 carries" in found.err
    assert "run 4 of 6: candidate, in high precision: layers.0" in found.err


@pytest.mark.flow
def test_exits_2_where_nothing_is_quantised(tmp_path: Path) -> None:
    plain = script(tmp_path)
    invoke(
        *("whatif", "--reference", plain, "--candidate", plain),
        *("--high-precision", "layers.*", "--out", tmp_path / "out"),
    ).require(2, "nothing in layers.* is quantised by a cast")


def test_exits_3_after_another_kind_of_group(tmp_path: Path) -> None:
    invoke(
        *("whatif", "--reference", "true", "--candidate", "true", "--high-precision", "*"),
        *("--by", "rank", "--out", tmp_path / "out"),
    ).require(3, "--by must be layer or module, found 'rank'")


class TestTheAnswer:
    def test_names_who_carries_both_gaps(self) -> None:
        said = "layers.0 carries 75% of the distance between gradients, and 80% of the loss gap"
        assert answer_line(whatif(FIRST, SECOND)) == said

    def test_names_another_where_the_loss_does(self) -> None:
        other = group(0.01, 0.19, "layers.1")
        assert answer_line(whatif(FIRST, other)).endswith("gradients, layers.1 90% of the loss gap")

    def test_keeps_silent_on_a_loss_that_tells_nothing(self) -> None:
        said = "layers.0 carries 75% of the distance between gradients"
        for gap in (5 * 2.0**-22, 0.001):
            assert answer_line(whatif(FIRST, SECOND, candidate=reading(gap, 0.2))) == said
        assert answer_line(whatif(group(0.06, 0.1))) == said  # which closes less than half of it

    def test_says_that_nobody_carries_most(self) -> None:
        found = answer_line(whatif(SECOND))
        assert found == (
            "no group carries most of the distance between gradients: all together carry 100%, "
            "layers.1 10%"
        )

    def test_says_that_it_is_elsewhere(self) -> None:
        found = answer_line(whatif(SECOND, together=group(0.08, 0.19, "all")))
        assert found.startswith("most of the distance between gradients is elsewhere: with all")
        assert found.endswith("90% of it stays")

    def test_says_that_there_is_no_gap(self) -> None:
        assert answer_line(whatif(FIRST, candidate=reading(0.0, 0.0))).startswith("there is no gap")


def test_the_table_has_a_row_for_all_and_one_for_each_group() -> None:
    left = replace(group(0.0, 0.0, "all"), left=("nobody saw",), modules=("a", "b"))
    lines = list(whatif_lines(whatif(FIRST, SECOND, together=left)))
    assert lines == [
        answer_line(whatif(FIRST, SECOND)),
        "  reference loss 5, candidate 5.1: a gap of 0.1, 1.7e+05 eps of float32",
        "  the candidate's gradients are 0.2 of their norm away from the reference's",
        "",
        "  in high precision           loss   gap  gradient distance closed  loss gap closed",
        "  all that match (2 modules)     5     0                      100%             100%",
        "  layers.0                    5.02  0.02                       75%              80%",
        "  layers.1                    5.08  0.08                       10%              20%",
        "  not undone: nobody saw",
    ]


def test_json_has_the_shares_beside_the_readings() -> None:
    found = strict_json(whatif_json(whatif(FIRST, SECOND)))
    assert json.loads(json.dumps(found)) == found
    assert (found["answer"], found["loss_gap"]) == ("one", "clear")
    assert list(found["shares"]) == ["layers.0", "layers.1"]
    assert found["groups"][1]["reading"]["gradient_distance"] == 0.19
