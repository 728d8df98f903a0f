"""What a command says while it works and when it is done: consoles, progress, JSON.

Everything meant for people goes to standard error where standard output is asked for JSON.
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
from ttrace.report.console import console_on, put_lines
from ttrace.report.forms import write_whole
from ttrace.report.html import render as render_page
from ttrace.report.json_file import dumps, render
from ttrace.report.terminal import print_check
from ttrace.text import inert
from ttrace.trace.store import place_of

OUT_FOLDER = Path("ttrace-out")


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
    columns = (SpinnerColumn(), _told("{task.description}"), TimeElapsedColumn())
    with _progress(*columns) as bar:
        task = bar.add_task(inert(what), total=None)
        yield lambda text: bar.update(task, description=inert(text))


@contextmanager
def comparing() -> Iterator[Callable[[str, int, int], None]]:
    columns = (
        _told("comparing {task.description}"),
        BarColumn(),
        _told("{task.completed}/{task.total}"),
        _Rate(),
        TimeRemainingColumn(),
    )
    bar = _progress(*columns)
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


def _told(template: str) -> TextColumn:
    return TextColumn(template, markup=False)


class _Rate(ProgressColumn):
    """Tensors per second."""

    def render(self, task: Task) -> Text:
        return Text("" if task.speed is None else f"{task.speed:.0f}/s")


def _progress(*columns: ProgressColumn) -> Progress:
    """Gone when the work is done, and never there when nobody looks."""
    console = open_console(stderr=True)
    return Progress(*columns, console=console, transient=True, disable=not console.is_terminal)
