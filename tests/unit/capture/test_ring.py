"""Memory that is handed out around and around."""

from __future__ import annotations

import random

import pytest

from ttrace.capture.memory import Ring, Stretch

SIZE = 1000


@pytest.mark.parametrize("seed", range(20))
def test_nothing_is_handed_out_twice(seed: int) -> None:
    rng, held = random.Random(seed), list[Stretch[None]]()
    ring: Ring[None] = Ring(SIZE)
    for _ in range(500):
        if rng.random() < 0.6:
            stretch = ring.take(rng.randint(1, 400))
            if stretch is not None:
                assert 0 <= stretch.start < stretch.stop <= SIZE
                assert stretch.start % 64 == 0
                assert all(stretch.stop <= h.start or h.stop <= stretch.start for h in held)
                held.append(stretch)
        elif held:
            ring.free(held.pop(rng.randrange(len(held))))


def test_it_is_full_until_the_oldest_is_free() -> None:
    ring: Ring[str] = Ring(SIZE)
    first, second = ring.take(512), ring.take(400)
    assert first is not None
    assert second is not None
    assert ring.take(512) is None
    ring.free(second)
    assert ring.take(512) is None  # what is before it is not
    assert ring.oldest is first
    ring.free(first)
    again = ring.take(512)
    assert again is not None
    assert again.start == 0


def test_it_goes_around_and_leaves_the_rest_at_its_end() -> None:
    ring: Ring[None] = Ring(SIZE)
    first, second = ring.take(512), ring.take(320)
    assert first is not None
    assert second is not None
    ring.free(first)
    third = ring.take(300)
    assert third is not None
    assert (third.start, third.stop) == (0, 300)
    assert ring.take(300) is None
    assert ring.take(150) is not None


def test_more_than_it_has_is_a_mistake_of_the_caller() -> None:
    with pytest.raises(ValueError, match="1001 bytes of a ring of 1000"):
        Ring(SIZE).take(SIZE + 1)
