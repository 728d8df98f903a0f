"""The answer to what high precision would change, in words."""

from __future__ import annotations

import json
from dataclasses import replace

from tests.unit.core.test_whatif import group, reading, whatif
from ttrace.core.plain import strict_json
from ttrace.report.whatif import answer_line, whatif_json, whatif_lines

FIRST, SECOND = group(0.02, 0.1), group(0.08, 0.19, "layers.1")


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
