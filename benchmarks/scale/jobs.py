"""Jobs that do next to nothing, and an engine that stays: they tell what the way of a job costs."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TypeVar

from ttrace.analysis.engine import Engine, Job, Workplace

BATCH = 64 << 20  # what a batch costs at least: such a job is one by itself
_T = TypeVar("_T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Nothing:
    """A job that is over at once."""

    number: int
    cost: int

    @property
    def name(self) -> str:
        return str(self.number)

    def run(self, place: Workplace) -> int:
        return self.number


@dataclass(frozen=True, slots=True, kw_only=True)
class Present:
    """Says which process did it, and leaves the others time to take one, too."""

    cost: int = BATCH

    @property
    def name(self) -> str:
        return "present"

    def run(self, place: Workplace) -> int:
        time.sleep(0.02)
        return os.getpid()


class Shared(Engine):
    """An engine that was entered before a check, and is left after it."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine

    def map(self, jobs: Sequence[Job[_T]], here: Workplace) -> Iterator[tuple[int, _T]]:
        return self._engine.map(jobs, here)
