"""Shares of a gap, and who carries it."""

from __future__ import annotations

import pytest

from tests.support.whatifs import group, reading, whatif
from ttrace.core.whatif import Answer, LossGap


def test_errors_add_up_in_squares() -> None:
    """Of two independent ones with 3 and 4 parts of 5, high precision leaves the other."""
    parts = group(0.0, 0.6), group(0.0, 0.8)
    found = whatif(*parts, candidate=reading(0.1, 1.0))
    assert sum(found.gradient_closed(part) for part in parts) == pytest.approx(1)


def test_a_run_that_is_further_away_closes_less_than_nothing() -> None:
    found = whatif(worse := group(-0.3, 0.4))
    assert found.loss_closed(worse) == pytest.approx(-2)
    assert found.gradient_closed(worse) == pytest.approx(-3)


@pytest.mark.parametrize(
    ("first", "together", "answer"),
    [
        (0.1, 0.0, Answer.ONE),  # 75% and 100%
        (0.18, 0.0, Answer.SEVERAL),
        (0.18, 0.18, Answer.ELSEWHERE),
        (0.2, 0.0, Answer.SEVERAL),
    ],
)
def test_who_closes_more_than_half_carries_it(
    first: float, together: float, answer: Answer
) -> None:
    assert whatif(group(0.0, first), together=group(0.0, together)).answer is answer


class TestTheLoss:
    def test_within_its_rounding_says_nothing(self) -> None:
        found = whatif(candidate=reading(5 * 2.0**-22, 0.2))
        assert found.gap_eps == pytest.approx(2)
        assert found.loss_gap is LossGap.ROUNDING
        assert found.answer is Answer.ONE

    def test_and_gradients_within_theirs_are_no_gap(self) -> None:
        assert whatif(candidate=reading(0.0, 2.0**-22)).answer is Answer.NO_GAP
        assert whatif(candidate=reading(0.0, 2.0**-20)).answer is not Answer.NO_GAP

    def test_that_groups_move_in_both_directions_says_little(self) -> None:
        assert whatif(group(-0.2, 0.1), group(0.4, 0.1)).loss_gap is LossGap.CANCELS
        assert whatif(group(0.02, 0.1), group(0.08, 0.1)).loss_gap is LossGap.CLEAR

    def test_of_zero_has_shares_of_zero(self) -> None:
        found = whatif(candidate=reading(0.0, 0.0))
        assert found.loss_closed(found.together) == found.gradient_closed(found.together) == 0
