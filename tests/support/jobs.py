"""Jobs for engines: those that fail, die or wait; workers find this module as tests do."""

from __future__ import annotations

import os
import signal
import time
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from ttrace.analysis.engine import Workplace
from ttrace.errors import CorruptTrace


@dataclass(frozen=True, kw_only=True)
class Doubled:
    """Says twice its number, and which process did it."""

    number: int
    cost: int = 1

    @property
    def name(self) -> str:
        return f"job {self.number}"

    def run(self, place: Workplace) -> tuple[int, int]:
        self.before(place)
        return 2 * self.number, os.getpid()

    def before(self, place: Workplace) -> None:
        pass


@dataclass(frozen=True, kw_only=True)
class Corrupt(Doubled):
    """Finds other bytes than were written."""

    def before(self, place: Workplace) -> None:
        raise CorruptTrace(f"bytes of job {self.number} were changed", "a second line")


@dataclass(frozen=True, kw_only=True)
class Broken(Doubled):
    """A fault of the code, by an exception that cannot travel."""

    def before(self, place: Workplace) -> None:
        class Homemade(Exception):
            pass

        raise Homemade(f"job {self.number} divides by nothing")


@dataclass(frozen=True, kw_only=True)
class Killed(Doubled):
    """Its process is killed, as by a system without memory, so many times."""

    folder: Path
    times: int

    def before(self, place: Workplace) -> None:
        deaths = len(list(self.folder.glob(f"{self.number}-*")))
        if deaths < self.times:
            (self.folder / f"{self.number}-{deaths}").touch()
            os.kill(os.getpid(), signal.SIGKILL)

    def deaths(self) -> int:
        return len(list(self.folder.glob(f"{self.number}-*")))


@dataclass(frozen=True, kw_only=True)
class Slow(Doubled):
    """Takes a while, and leaves a file of its number."""

    SECONDS: ClassVar[float] = 0.5
    folder: Path

    def before(self, place: Workplace) -> None:
        time.sleep(self.SECONDS)
        (self.folder / str(self.number)).touch()
