"""What a command says while it works and when it is done: consoles, progress, JSON.

    run 3 of 3: perturbed reference: 3 of 8 ranks have ended
    run 3 of 3: perturbed reference, 12 s, 1.2 GB, hooks 54% of the step
    compared 394 tensors, 0.8 s
    run 4 of 6: isolated reference, 9.1 s, 1.2 GB, hooks 61% of the step

While runs and comparisons last there is a spinner for a person, and plain lines for a log: one for
each run and each comparison that has ended. How many runs there will be may grow on the way. Where
ranks run elsewhere, a line says now and then how many have ended. Such lines go to standard error,
and so does all that is meant for people where standard output is asked for JSON.
"""

from __future__ import annotations

import io
import shlex
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress,
    ProgressColumn,
    SpinnerColumn,
    Task,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.text import Text

from ttrace.core.results import CheckResult
from ttrace.lab.run import Executor, TracedRun
from ttrace.report.checkup import short_cost
from ttrace.report.forms import write_whole
from ttrace.report.html import render as render_page
from ttrace.report.json_file import dumps, render
from ttrace.report.numbers import counted
from ttrace.report.terminal import console_on, print_check, put_lines
from ttrace.text import inert
from ttrace.trace.progress import cost_of
from ttrace.trace.store import place_of

OUT_FOLDER = Path("ttrace-out")
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


def finish(
    result: CheckResult, folder: Path | None, html: str | None, json_file: str | None
) -> NoReturn:
    """Write the result, its report and what else was asked for, print it, and exit by it."""
    result = replace(result, command=_command())
    piped = html == "-"
    quiet = piped or json_file == "-"
    pages: list[Path | str] = [] if html is None or piped else [html]
    if folder is not None:
        _put(str(folder / "result.json"), render(result))
        pages.append(folder / "report.html")
    for page in pages:
        result.write_html(page)
    if json_file not in (None, "-"):
        _put(json_file, render(result))  # before a reader of the text may have gone
    print_check(result, open_console(stderr=quiet))
    if pages:
        say(f"report: {pages[0]}", stderr=quiet)
    if folder is not None:
        say(f"traces and result.json in {folder}", stderr=quiet)
    if piped:
        _put("-", render_page(result))
    if json_file == "-":
        _put("-", render(result))
    raise typer.Exit(result.exit_code)


def _command() -> str:
    """What was typed; empty where somebody calls a command from Python."""
    program = Path(sys.argv[0])
    is_ours = program.stem == "ttrace" or program.parts[-2:] == ("ttrace", "__main__.py")
    return shlex.join(["ttrace", *sys.argv[1:]]) if is_ours else ""


def say(*lines: str, stderr: bool = False) -> None:
    """Each argument is one line, whatever is in it."""
    put_lines(open_console(stderr=stderr), lines)


def take_any_text() -> None:
    """What the terminal has no character for is written as in Python; it ends no command."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def say_error(error: Exception) -> None:
    """What is wrong, on standard error; all newlines of a message are of our own making."""
    say(*f"ttrace: {error}".split("\n"), stderr=True)


def write_json(target: str | None, data: object) -> None:
    if target is not None:
        _put(target, dumps(data))


def _put(target: str, text: str) -> None:
    if target == "-":
        write_whole(sys.stdout, text)
    else:
        place_of(target).write_text(text, encoding="utf-8")


def stamped_folder(command: str) -> Path:
    """Where a command leaves what it made, where nobody says it."""
    return OUT_FOLDER / f"{command}-{time.strftime('%Y%m%d-%H%M%S')}"


def open_console(*, stderr: bool = False) -> Console:
    return console_on(sys.stderr if stderr else sys.stdout)


def stderr_is_terminal() -> bool:
    return open_console(stderr=True).is_terminal


@contextmanager
def waiting(what: str) -> Iterator[Callable[[str], None]]:
    """A spinner; what is yielded gives it other words."""
    columns = (SpinnerColumn(), _column_of("{task.description}"), TimeElapsedColumn())
    with _transient_bar(*columns) as bar:
        task = bar.add_task(inert(what), total=None)
        yield lambda text: bar.update(task, description=inert(text))


@contextmanager
def comparing() -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        _column_of("comparing {task.description}"),
        BarColumn(),
        _column_of("{task.completed}/{task.total}"),
        _Rate(),
        TimeRemainingColumn(),
    )
    bar = _transient_bar(*columns)
    task = bar.add_task("", total=None)

    def progress(what: str, done: int, total: int) -> None:
        if done == 0:
            bar.start()  # not before: commands that run until then show a spinner of their own
        bar.update(task, description=inert(what), completed=done, total=total)
        if done == total:
            bar.stop()

    try:
        yield progress
    finally:
        bar.stop()


def _column_of(template: str) -> TextColumn:
    return TextColumn(template, markup=False)


class _Rate(ProgressColumn):
    """Tensors per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.0f}/s")


def _transient_bar(*columns: ProgressColumn) -> Progress:
    """Gone when the work is done, and never there when nobody looks."""
    console = open_console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)


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
