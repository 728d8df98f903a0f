"""What is said while runs and comparisons last: a spinner for a person, plain lines for a log.

    run 3 of 3: perturbed reference: 3 of 8 ranks have ended
    run 3 of 3: perturbed reference, 12 s, 1.2 GB, hooks 54% of the step
    compared 394 tensors, 0.8 s
    run 4 of 6: isolated reference, 9.1 s, 1.2 GB, hooks 61% of the step

Lines come when something has ended, one for each run and each comparison, on standard error: what
is asked for stays alone on standard output. How many runs there will be may grow on the way. Where
ranks run elsewhere, a line says now and then how many have ended.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace

from ttrace.cli.screen import comparing, say, stderr_is_terminal, waiting
from ttrace.lab.run import Executor, TracedRun
from ttrace.report.costs import short_cost
from ttrace.report.numbers import counted
from ttrace.trace.cost import cost_of

_NAMES = {
    "reference": "reference",
    "candidate": "candidate",
    "perturbed": "perturbed reference",
    "repeated": "reference once more",
    "probe": "reference with an error put in",
    "high": "candidate, in high precision:",
}
_WHERE = {
    "": "",
    "isolation": "isolated ",
    "isolation/coarse": "isolated at blocks alone: ",
    "isolation/further": "isolated in further blocks: ",
    "isolation/kept": "isolated with whole modules: ",
}


@contextmanager
def telling(execute: Executor) -> Iterator[Telling]:
    """Who runs and watches an experiment, so that people see how far it is."""
    with comparing() as draw:
        told = Telling(execute, draw)
        yield told
        told.end_comparison()


@contextmanager
def hearing(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner for a run that tells how far it is; where nobody looks at it, lines for a log."""
    with waiting(what) as describe:

        def tell(news: str) -> None:
            describe(f"{what}: {news}")
            if not stderr_is_terminal():
                say(f"{what}: {news}", stderr=True)

        yield tell


class Telling:
    """An executor that says which run it is, of how many that are known of; and its progress."""

    def __init__(self, execute: Executor, draw: Callable[[str, int, int], None]) -> None:
        self._execute = execute
        self._draw = draw
        self._runs = 0
        self._tensors = 0
        self._began = self._ended = 0.0

    def __call__(self, run: TracedRun) -> None:
        self.end_comparison()
        self._runs += 1
        what = f"run {self._runs} of {self._runs + run.then}: {spoken(run.name)}"
        start = time.monotonic()
        try:
            with hearing(what) as tell:
                self._execute(replace(run, tell=tell))
        except BaseException:
            _line(f"{what}, did not end well after", time.monotonic() - start)
            raise
        _line(f"{what},", time.monotonic() - start, _cost(run))

    def progress(self, what: str, done: int, total: int) -> None:
        """A comparison has several parts: noise, candidate, suspects."""
        self._ended = time.monotonic()
        if not self._tensors:
            self._began = self._ended
        self._tensors = max(self._tensors, total)
        self._draw(what, done, total)

    def end_comparison(self) -> None:
        if self._tensors:
            _line(f"compared {counted(self._tensors, 'tensor')},", self._ended - self._began)
        self._tensors = 0


def spoken(name: str) -> str:
    """isolation/perturbed-2 -> isolated perturbed reference 2"""
    folder, _, last = name.rpartition("/")
    kind, _, number = last.partition("-")
    said = _WHERE.get(folder, f"{folder} ") + _NAMES.get(kind, kind)
    return f"{said} {number}" if number not in ("", "1") else said


def _cost(run: TracedRun) -> str:
    cost = cost_of(run.folder)
    return "" if cost is None else f", {short_cost(cost)}"


def _line(text: str, seconds: float, more: str = "") -> None:
    if not stderr_is_terminal():
        say(f"{text} {seconds:.{0 if seconds >= 10 else 1}f} s{more}", stderr=True)
