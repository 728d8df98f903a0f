"""Forms of a report: each is one object, and whoever makes reports finds it here by its name.

    FileForm      one text            --junit FILE, or - for standard output
    FolderForm    files in a folder   --tensorboard DIR
    LinesForm     lines on a stream   --github

Another package adds a form by an entry point; `ttrace report RESULT --form csv=FILE` finds it:

    [project.entry-points."ttrace.report_forms"]
    csv = "my_package.table:FORM"  # FORM = FileForm(name="csv", help="...", render=render)

Enters: a CheckResult and where its report goes. Leaves: the report, and a word on what was written.
Forms do not know each other: what one needs of another, as GitHub needs Markdown, is put together
here.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import ClassVar, TextIO

from ttrace.core.results import CheckResult
from ttrace.errors import UsageError
from ttrace.report import github, html, json_file, junit, markdown, terminal, trackers
from ttrace.report.numbers import counted
from ttrace.report.terminal import console_on
from ttrace.trace.store import local_path, place_of

_GROUP = "ttrace.report_forms"


@dataclass(frozen=True, slots=True, kw_only=True)
class Form(ABC):
    """What every form has; one of its kinds below says what it writes."""

    name: str
    help: str  # a whole sentence, for --help
    target: ClassVar[str]  # what it is written to: FILE, DIR; empty where it is printed

    @abstractmethod
    def write(self, result: CheckResult, target: str, out: TextIO) -> str:
        """Write the report; what to say of it, if anything. `out` takes what is printed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FileForm(Form):
    """One text, in a file."""

    render: Callable[[CheckResult], str]
    target: ClassVar[str] = "FILE"

    def write(self, result: CheckResult, target: str, out: TextIO) -> str:
        text = self.render(result)
        if target == "-":
            write_whole(out, text)
            return ""
        place_of(target).write_text(text, encoding="utf-8")
        return target


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderForm(Form):
    """Files in a folder; `fill` says what it wrote."""

    fill: Callable[[CheckResult, Path], str]
    target: ClassVar[str] = "DIR"

    def write(self, result: CheckResult, target: str, out: TextIO) -> str:
        return self.fill(result, local_path(target))


@dataclass(frozen=True, slots=True, kw_only=True)
class LinesForm(Form):
    """Lines for whoever reads standard output."""

    print: Callable[[CheckResult, TextIO], None]
    target: ClassVar[str] = ""

    def write(self, result: CheckResult, target: str, out: TextIO) -> str:
        self.print(result, out)
        return ""


def parse_form(text: str) -> tuple[Form, str]:
    """NAME=PATH, or NAME of what is printed: the form, and what it is to be written to."""
    name, _, target = text.partition("=")
    form = find_form(name)
    if bool(form.target) == bool(target):
        return form, target
    expected = f"{name}={form.target}" if form.target else name
    raise UsageError(f"`--form {expected}` was expected, found `--form {text}`")


def find_form(name: str) -> Form:
    """A form of TTrace or of an installed package, by its name."""
    if name in FORMS:
        return FORMS[name]
    found = entry_points(group=_GROUP)
    if name not in found.names:
        known = ", ".join([*FORMS, *sorted(found.names)])
        raise UsageError(f"no form of report is called {name!r}; there are {known}")
    try:
        form = found[name].load()
    except (ImportError, AttributeError) as error:
        raise UsageError(
            f"the form {name!r} cannot be loaded from {found[name].value}: {error}; its package "
            "must be repaired or removed"
        ) from error
    if not isinstance(form, Form):
        raise UsageError(
            f"the form {name!r} must be a FileForm, FolderForm or LinesForm, and "
            f"{found[name].value} is {form!r}"
        )
    return form


def write_whole(out: TextIO, text: str) -> None:
    """A file into a pipe: in UTF-8, as its own head says, whatever a terminal here would take."""
    out.flush()
    if (raw := getattr(out, "buffer", None)) is None:
        out.write(text)
    else:
        raw.write(text.encode())
        raw.flush()


def _scalars(result: CheckResult, folder: Path) -> str:
    return f"{counted(trackers.write_scalars(result, folder), 'scalar')} in {folder}"


def _annotate(result: CheckResult, out: TextIO) -> None:
    for line in github.workflow_commands(result):
        out.write(f"{line}\n")
    summary = github.summary_file()
    if summary is not None:
        with summary.open("a", encoding="utf-8") as file:
            file.write(markdown.render(result))


def _print(result: CheckResult, out: TextIO) -> None:
    terminal.print_check(result, console_on(out))


TERMINAL = LinesForm(name="terminal", help="Print it, for a person.", print=_print)
_OF_OPTIONS: tuple[Form, ...] = (  # in the order in which --help shows them
    FileForm(name="html", help="Write the report as one HTML file.", render=html.render),
    FileForm(name="junit", help="Write JUnit XML, for CI.", render=junit.render),
    FileForm(name="markdown", help="Write Markdown, for an issue.", render=markdown.render),
    LinesForm(
        name="github",
        help="Print annotations; add the Markdown to $GITHUB_STEP_SUMMARY.",
        print=_annotate,
    ),
    FolderForm(name="tensorboard", help="Write TensorBoard scalars.", fill=_scalars),
    FileForm(
        name="json",
        help="Write the result as JSON; - for standard output.",
        render=json_file.render,
    ),
)
FORMS: dict[str, Form] = {form.name: form for form in (*_OF_OPTIONS, TERMINAL)}
