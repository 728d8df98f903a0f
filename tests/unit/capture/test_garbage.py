"""Garbage is collected less often inside, and as before outside; what a program says counts."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest

from ttrace.capture.step import _OBJECTS, fewer_collections

OWN = (700, 11, 12)


@pytest.fixture(autouse=True)
def restored() -> Iterator[None]:
    before, is_enabled = gc.get_threshold(), gc.isenabled()
    gc.set_threshold(*OWN)
    yield
    gc.set_threshold(*before)
    (gc.enable if is_enabled else gc.disable)()


def test_only_the_first_threshold_is_higher_while_it_is_open() -> None:
    with fewer_collections():
        assert gc.get_threshold() == (_OBJECTS, *OWN[1:])
    assert gc.get_threshold() == OWN


def test_thresholds_are_as_before_after_an_exception() -> None:
    with pytest.raises(ZeroDivisionError), fewer_collections():
        raise ZeroDivisionError
    assert gc.get_threshold() == OWN


def test_one_in_another_leaves_them_to_the_outer() -> None:
    with fewer_collections():
        with fewer_collections():
            assert gc.get_threshold()[0] == _OBJECTS
        assert gc.get_threshold()[0] == _OBJECTS
    assert gc.get_threshold() == OWN


@pytest.mark.parametrize("first", [0, _OBJECTS, 2 * _OBJECTS])
def test_who_collects_never_or_as_seldom_is_left_alone(first: int) -> None:
    gc.set_threshold(first, 5, 6)
    with fewer_collections():
        assert gc.get_threshold() == (first, 5, 6)
        gc.set_threshold(3, 2, 1)
    assert gc.get_threshold() == (3, 2, 1)


@pytest.mark.parametrize("own", [(0, 11, 12), (100, 1, 1), (_OBJECTS, 5, 12)])
def test_what_a_program_sets_inside_stays(own: tuple[int, int, int]) -> None:
    with fewer_collections():
        gc.set_threshold(*own)
    assert gc.get_threshold() == own


@pytest.mark.parametrize("is_enabled", [False, True])
def test_whether_garbage_is_collected_at_all_is_not_touched(is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()
    with fewer_collections():
        assert gc.isenabled() == is_enabled
    assert gc.isenabled() == is_enabled


def test_around_a_function_it_is_opened_with_every_call() -> None:
    @fewer_collections()
    def inside() -> int:
        return gc.get_threshold()[0]

    assert [inside(), inside()] == [_OBJECTS, _OBJECTS]
    assert gc.get_threshold() == OWN
