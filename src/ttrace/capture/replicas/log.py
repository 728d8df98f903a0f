"""What a watched run tells: the first rank writes it, at the first comparison, at every drift, and
when the run or the watching ends; the first drift is also said in the log of the run, once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from ttrace.capture.replicas.comparison import Comparison
from ttrace.capture.replicas.roll import names_of
from ttrace.core.drift import Drift, SharedKind, WatchedRun, in_words
from ttrace.text import inert
from ttrace.trace.progress import write_refusal
from ttrace.trace.watch_file import write_watched

_LOG = logging.getLogger("ttrace")
_MOST_DRIFTS = 64  # chosen: what a person reads; further ones are counted
_MOST_NAMES = 8  # chosen: enough to see what they are


class WatchLog:
    """Of one process; only the first rank writes it."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._rank, self._world_size = 0, 1
        self.steps = 0  # that this process has made
        self.seconds = 0.0  # that watching took of it
        self.exchanges = 0  # that were begun: one for each model that took another's place
        self._watched = 0
        self._compared: Mapping[SharedKind, int] = {}
        self._unjudged: Mapping[SharedKind, int] = {}
        self._names: Sequence[str] = ()
        self._drifts: list[Drift] = []
        self._more = 0
        self._why: str | None = None
        self._is_told = self._ended = False

    def meet(self, rank: int, world_size: int) -> None:
        self._rank, self._world_size = rank, world_size

    def add(self, comparison: Comparison, drifts: Sequence[Drift]) -> None:
        """What came out of a comparison."""
        is_first = not self._watched
        self._watched += 1
        self._compared, self._unjudged = comparison.world.compared, comparison.unjudged
        room = _MOST_DRIFTS - len(self._drifts)
        self._drifts += drifts[:room]
        self._more += len(drifts[room:])
        if drifts and not self._is_told and self._rank == 0:
            self._is_told = True
            more = f", and {len(drifts) - 1} more" if len(drifts) > 1 else ""
            _LOG.error("ttrace: %s%s; training goes on", inert(in_words(drifts[0])), more)
        if is_first or drifts:
            self._names = names_of(comparison.roll, comparison.world, _MOST_NAMES)
            self._more += comparison.not_looked_at
            comparison.not_looked_at = 0
            self._write()

    def break_off(self, why: str, *, is_own: bool = False) -> None:
        """Others hear that this rank is gone, and not why."""
        if self._why is None:
            self._why = why
            if is_own and self._rank != 0:
                with suppress(OSError):
                    write_refusal(self._folder, why)
            self._write()

    def end(self) -> None:
        self._ended = True
        self._write()

    def _write(self) -> None:
        if self._rank != 0:
            return
        with suppress(OSError):  # a disk that is full ends nothing
            write_watched(
                self._folder,
                WatchedRun(
                    world_size=self._world_size,
                    steps=self.steps,
                    watched=self._watched,
                    compared=self._compared,
                    unjudged=self._unjudged,
                    names=tuple(self._names),
                    drifts=tuple(self._drifts),
                    more_drifts=self._more,
                    broke_off=self._why,
                    ended=self._ended,
                    seconds=self.seconds,
                ),
            )
