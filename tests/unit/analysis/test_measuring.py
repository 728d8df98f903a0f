"""What comes next is prepared while workers are busy, and fails in its turn."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from ttrace.analysis.measuring import _Following


def one_after_the_other(*values: int | Exception) -> Callable[[], int]:
    left = list(values)

    def make() -> int:
        value = left.pop(0)
        if isinstance(value, Exception):
            raise value
        return value

    return make


def test_what_was_prepared_is_taken_in_order() -> None:
    following = _Following(one_after_the_other(1, 2))
    following.prepare()
    assert following.take() == 1
    following.prepare()
    assert following.take() == 2


def test_where_nobody_was_busy_it_is_made_when_it_is_taken() -> None:
    following = _Following(one_after_the_other(1, 2))
    assert [following.take(), following.take()] == [1, 2]


def test_what_fails_is_raised_when_its_turn_comes() -> None:
    following = _Following(one_after_the_other(ValueError("a cut trace")))
    following.prepare()  # whatever fails meanwhile came first
    with pytest.raises(ValueError, match="a cut trace"):
        following.take()
