"""Independent pieces of a long benchmark, several at a time, with a progress bar.

Enters: tasks, and what to do with one of them in a process of its own. Leaves: each task with what
came of it, as soon as it is done.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from typing import TypeVar

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    ProgressColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

T = TypeVar("T")
R = TypeVar("R")

CONSOLE = Console(stderr=True)

_PERIOD = 600.0  # chosen: seconds over which the rate is a mean; a task takes up to a minute


def in_parallel(
    title: str, tasks: Sequence[T], work: Callable[[T], R], prepare: Callable[[], None], jobs: int
) -> Iterator[tuple[T, R]]:
    """`prepare` is called once in every process, before its first task."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _Rate(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    with (
        Progress(*columns, console=CONSOLE, speed_estimate_period=_PERIOD) as progress,
        # Not forked: a copy of this process has threads' locks, but not the threads.
        ProcessPoolExecutor(jobs, get_context("spawn"), prepare) as executor,
    ):
        bar = progress.add_task(title, total=len(tasks))
        running = {executor.submit(work, task): task for task in tasks}
        for future in as_completed(running):
            result = future.result()
            progress.advance(bar)
            yield running[future], result


class _Rate(ProgressColumn):
    """Tasks a minute."""

    def render(self, task: Task) -> Text:
        minutes = (task.elapsed or 0.0) / 60
        return Text(f"{task.completed / minutes:.1f}/min" if minutes else "")
