"""How far a check is, is told of one task after the other, in whatever order jobs end."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.jobs import Doubled
from ttrace.analysis.work import Task, TaskTelling

TWO, ONE = ("noise", 2), ("candidate", 1)
IN_ORDER = [("noise", 0, 2), ("noise", 1, 2), ("noise", 2, 2), ("candidate", 0, 1)]


def told(sizes: Sequence[tuple[str, int]], owners: Sequence[int]) -> list[tuple[str, int, int]]:
    said: list[tuple[str, int, int]] = []
    tasks = [Task(what, [Doubled(number=n) for n in range(count)]) for what, count in sizes]
    telling = TaskTelling(tasks, lambda *words: said.append(words))
    for owner in owners:
        telling.one_more(owner)
    return said


@pytest.mark.parametrize("owners", [(0, 0, 1), (0, 1, 0), (1, 0, 0)])
def test_a_task_is_told_to_its_end_before_the_next(owners: tuple[int, ...]) -> None:
    assert told([TWO, ONE], owners) == [*IN_ORDER, ("candidate", 1, 1)]


def test_it_begins_before_the_first_job_has_ended() -> None:
    assert told([TWO, ONE], ()) == IN_ORDER[:1]


def test_a_task_without_jobs_is_not_told() -> None:
    assert told([("nothing", 0), ONE, ("nothing", 0)], (1,)) == [
        ("candidate", 0, 1),
        ("candidate", 1, 1),
    ]
