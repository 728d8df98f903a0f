"""Tasks: jobs under one name, by which people are told how far a check is.

    comparing noise 1 of 2  17/1,054

Enters: tasks in their order, and which of them a job that has ended belongs to. Leaves: what is
told, of one task after the other, in whatever order jobs end.
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from ttrace.analysis.engine import Job

Progress = Callable[[str, int, int], None]  # what, done, of how many
RunJobs = Callable[[Sequence[Job[Any]], str], list[Any]]  # what comes of each, under one name
_NONE = -1


class Task(NamedTuple):
    """A name for people, and what is to be done."""

    what: str
    jobs: Sequence[Job[Any]]


class TaskTelling:
    """How far tasks are: of the first that has not ended, from nothing to all of it."""

    def __init__(self, tasks: Sequence[Task], report: Progress) -> None:
        self._tasks = tasks
        self._report = report
        self._done: Counter[int] = Counter()
        self._left = deque(number for number, task in enumerate(tasks) if task.jobs)
        self._begin()

    def one_more(self, number: int) -> None:
        """A job of the task with this number has ended."""
        self._done[number] += 1
        while self._left and self._left[0] == number:
            task, done = self._tasks[number], self._done[number]
            self._report(task.what, done, len(task.jobs))
            if done < len(task.jobs):
                return
            self._left.popleft()
            number = self._begin()

    def _begin(self) -> int:
        """The next task, of which nothing was told; none where its jobs have not begun to end."""
        if not self._left:
            return _NONE
        task = self._tasks[self._left[0]]
        self._report(task.what, 0, len(task.jobs))
        return self._left[0] if self._done[self._left[0]] else _NONE
