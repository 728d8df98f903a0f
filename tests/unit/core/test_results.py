from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tests.support.made_results import made
from ttrace.core.ids import TensorId
from ttrace.core.results import CheckResult, NotEquivalent, Outcome, Verdict

CLEAN = made()
FAILING = made(wrong_layer=1)
UNDECIDED = replace(
    CLEAN, tensors=tuple(replace(r, verdict=Verdict.UNDECIDED) for r in CLEAN.tensors)
)
NOTHING = replace(CLEAN, tensors=())


class TestOutcome:
    @pytest.mark.parametrize(
        ("result", "outcome", "code"),
        [
            (CLEAN, Outcome.EQUIVALENT, 0),
            (FAILING, Outcome.NOT_EQUIVALENT, 1),
            (UNDECIDED, Outcome.UNDECIDED, 2),
            (NOTHING, Outcome.UNDECIDED, 2),
        ],
        ids=["clean", "failing", "undecided", "nothing compared"],
    )
    def test_has_an_exit_code(self, result: CheckResult, outcome: Outcome, code: int) -> None:
        assert (result.outcome, result.exit_code) == (outcome, code)
        assert result.to_dict()["outcome"] == outcome.value

    def test_of_an_equivalent_candidate_raises_nothing(self) -> None:
        CLEAN.raise_for_outcome()

    @pytest.mark.parametrize("result", [FAILING, UNDECIDED, NOTHING])
    def test_of_any_other_raises_with_the_result(self, result: CheckResult) -> None:
        with pytest.raises(NotEquivalent) as raised:
            result.raise_for_outcome()
        assert raised.value.result is result
        assert str(raised.value) == str(result)


class TestReading:
    def test_a_result_as_text_is_its_headline(self) -> None:
        assert str(CLEAN).startswith("EQUIVALENT: all")
        assert str(FAILING).startswith("NOT EQUIVALENT: layers.1.feed_forward.w2, backward")

    def test_a_tensor_is_found_by_its_id_and_by_its_text(self) -> None:
        first = FAILING.failures[0]
        assert FAILING[first.id] is first
        assert FAILING[str(first.id)] is first

    @pytest.mark.parametrize("form", [str, TensorId.parse])
    def test_an_unknown_tensor_is_answered_with_near_ones(self, form: type) -> None:
        with pytest.raises(KeyError, match=r"no tensor step0/norm:output.7.*step0/norm:output.0"):
            FAILING[form("step0/norm:output.7")]

    def test_the_report_is_written_as_one_file(self, tmp_path: Path) -> None:
        FAILING.write_html(tmp_path / "report.html")
        assert "NOT EQUIVALENT" in (tmp_path / "report.html").read_text()
