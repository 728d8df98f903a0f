"""Batches: by cost, large ones first, and each job in one of them."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.jobs import Doubled
from ttrace.analysis.engine.base import batches_of

MEGABYTE = 1 << 20


def numbers(costs: list[int], workers: int) -> list[list[int]]:
    jobs = [Doubled(number=number, cost=cost) for number, cost in enumerate(costs)]
    return [[number for number, _ in batch] for batch in batches_of(jobs, workers)]


@given(st.lists(st.integers(0, 1 << 34), max_size=60), st.integers(1, 64))
def test_every_job_is_in_one_batch_and_none_is_too_large(costs: list[int], workers: int) -> None:
    found = numbers(costs, workers)
    assert sorted(number for batch in found for number in batch) == list(range(len(costs)))
    most = max(64 * MEGABYTE, sum(costs) // (16 * workers))
    assert all(len(batch) == 1 or sum(costs[n] for n in batch) <= most for batch in found)


def test_large_jobs_go_first_and_small_ones_travel_together() -> None:
    costs = [1, 1, 500 * MEGABYTE, 1, 900 * MEGABYTE, 1]
    assert numbers(costs, 2) == [[4], [2], [0, 1, 3, 5]]


def test_no_worker_waits_long_for_the_last_batch() -> None:
    """As the next that is free takes the next batch, all end at about the same time."""
    costs = [(7 * number % 100) * MEGABYTE for number in range(500)]
    loads = [0, 0, 0]
    for batch in numbers(costs, 3):
        loads[loads.index(min(loads))] += sum(costs[number] for number in batch)
    assert max(loads) - min(loads) < 0.1 * sum(costs) / 3
