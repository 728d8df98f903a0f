"""One rank at a time runs, all go on in the end, and where none can that is said at once."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import nullcontext
from functools import partial

import pytest

from ttrace.lab.simulated.turns import Abandoned, Turns, Wait, told

Live = Callable[[int, Turns], None]


def run(count: int, live: Live) -> Turns:
    turns = Turns(count, nullcontext)

    def body(rank: int) -> None:
        try:
            turns.begin(rank)
            live(rank, turns)
        except Abandoned:
            pass
        except ValueError:
            turns.stop()
        finally:
            turns.end(rank)

    threads = [threading.Thread(target=body, args=(rank,), daemon=True) for rank in range(count)]
    for thread in threads:
        thread.start()
    turns.start()
    assert turns.all_ended.wait(20)
    return turns


def test_ranks_meet_in_an_order_that_is_always_the_same() -> None:
    events: list[tuple[int, int]] = []

    def have_come(count: int) -> bool:
        return len(events) >= count

    def live(rank: int, turns: Turns) -> None:
        for round_ in range(3):
            events.append((round_, rank))
            turns.wait(Wait(partial(have_come, 5 * (round_ + 1)), lambda: "a round"))

    assert run(5, live).deadlock is None
    first = list(events)
    assert sorted(first) == [(round_, rank) for round_ in range(3) for rank in range(5)]
    assert [round_ for round_, _ in first] == sorted(round_ for round_, _ in first)
    events.clear()
    run(5, live)
    assert events == first


def test_no_two_ranks_run_at_once() -> None:
    running, most, ended = 0, 0, 0

    def live(rank: int, turns: Turns) -> None:
        nonlocal running, most, ended
        running += 1
        most = max(most, running)
        for _ in range(1000):
            pass
        running -= 1
        ended += 1
        turns.wait(Wait(lambda: ended == 8, lambda: "all"))

    run(8, live)
    assert most == 1


def test_a_deadlock_is_told_with_what_each_rank_waits_for() -> None:
    def live(rank: int, turns: Turns) -> None:
        if rank != 3:
            what = "all_gather" if rank == 1 else "all_reduce"
            turns.wait(Wait(lambda: False, lambda: what))

    assert run(5, live).deadlock == (
        "no rank can go on: ranks 0, 2, 4 in all_reduce; rank 1 in all_gather; rank 3 returned"
    )


def test_a_rank_that_raises_ends_the_others_where_they_wait() -> None:
    ended: list[int] = []

    def live(rank: int, turns: Turns) -> None:
        if rank == 2:
            raise ValueError
        try:
            turns.wait(Wait(lambda: False, lambda: "nothing"))
        except Exception:  # noqa: BLE001  (scripts catch these)
            pytest.fail("a script could swallow it")
        finally:
            ended.append(rank)

    assert run(4, live).deadlock is None
    assert sorted(ended) == [0, 1]  # rank 3 had no turn before that


def test_ranks_are_told_in_runs() -> None:
    assert told([3]) == "rank 3"
    assert told([5, 0, 1, 2]) == "ranks 0-2, 5"
